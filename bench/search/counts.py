"""The default planner against every baseline on 1 to 32 devices.

    python -m bench counts [--models NAME ...] [--again]

Takes hours. Each case is appended to `bench/results/counts.jsonl`, and a second call goes on where the first ended.
`--again` computes the cases again that are there. Calls for other models may run at the same time.

The cluster is the first devices of `summit` nodes of six. Step times are simulated. Operator times are those of the
analytic V100, or the PipeDream profiles' own (../shared/data/pipedream beside the checkout, skipped if absent). Both
sides have the same schedule: 1F1B, or the best one (`auto`).
"""

import multiprocessing
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import graphpipe as gp
from bench.record import append_row, read_rows, save
from bench.search.profiles import DATA
from bench.search.vision_models import vision_graph
from bench.tables import geometric_mean, markdown
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.model.zoo import zoo
from graphpipe.planners.registry import planner_names

ZOO = {"mmt": 16, "dlrm": 128, "candle-uno": 128, "case-study": 16, "gpt": 16, "two-tower": 16, "unet": 16}
"""Samples of a mini-batch per device."""
VISION = {"resnet18": 16, "squeezenet": 16}
PROFILES = {"gnmt": 32, "vgg16": 32, "resnet50": 32, "inception_v3": 32}
EACH = {**ZOO, **VISION, **PROFILES}
DEVICES = range(1, 33)
BASELINES = tuple(name for name in planner_names(trains=True) if name != "graphpipe")
SCHEDULES = ("1f1b", "auto")
LIMIT_SECONDS = 60
"""Processor seconds of all baselines of one case together, so that other work on the machine does not cut one off."""
TOLERANCE = 1e-9


def summit(devices: int) -> gp.Cluster:
    """Return V100 in nodes of six, the last node perhaps with fewer."""
    whole = gp.Cluster.preset(f"summit:{-(-devices // 6)}x6")
    return replace(whole, devices=whole.devices[:devices])


def graphs(models: Sequence[str]) -> Iterator[tuple[str, gp.Graph, int]]:
    """Yield the name, graph and samples per device of these models. Profiles that are absent are left out."""
    for model in models:
        if model in ZOO:
            yield model, gp.capture(*zoo(model)), EACH[model]
        elif model in VISION:
            yield model, vision_graph(model), EACH[model]
        elif DATA.exists():
            yield model, read_pipedream(DATA / f"{model}.graph.txt"), EACH[model]


def step_row(graph: gp.Graph, cluster: gp.Cluster, batch: int, planner: str, schedule: str) -> dict[str, Any]:
    """Return the step and search seconds of one planner; step seconds are None if it finds no plan."""
    row: dict[str, Any] = {"planner": planner, "schedule": schedule, "step_seconds": None}
    costs, start = gp.estimate(graph, cluster), time.process_time()
    try:
        plan = gp.plan(graph, costs, cluster, batch_size=batch, planner=planner, schedule=schedule)
    except gp.Infeasible:
        return row | {"search_seconds": round(time.process_time() - start, 3)}
    assert plan.prediction is not None
    return row | {
        "runs": plan.schedule,  # Where devices share stages, 1F1B is `interleaved`.
        "step_seconds": plan.prediction.step_seconds,
        "search_seconds": round(time.process_time() - start, 3),
    }


def case_row(graph: gp.Graph, model: str, devices: int, batch: int) -> dict[str, Any]:
    """Return the plans of all planners for one case. Baselines that the limit of seconds cuts off are missing."""
    cluster = summit(devices)
    own = [step_row(graph, cluster, batch, "graphpipe", schedule) for schedule in SCHEDULES]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def send() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
        for name in sorted(BASELINES, key=("dapple", "piper").__contains__):
            for schedule in SCHEDULES:
                theirs.send(step_row(graph, cluster, batch, name, schedule))

    process = context.Process(target=send, daemon=True)
    process.start()
    theirs.close()
    found = list[dict[str, Any]]()
    with suppress(EOFError):  # The process ends.
        while True:
            found.append(ours.recv())
    process.join()
    return {"model": model, "devices": devices, "batch": batch, "plans": own + found}


def ratio(plans: Sequence[dict[str, Any]], schedule: str) -> tuple[float, str] | None:
    """Return our throughput over the best baseline's under a schedule, and that baseline; None without one."""
    alike = [row for row in plans if row["schedule"] == schedule and row["step_seconds"] is not None]
    # Under 1F1B, `gpipe` keeps its own schedule.
    steps = {row["planner"]: row["step_seconds"] for row in alike if schedule == "auto" or row["runs"] != "gpipe"}
    own = steps.pop("graphpipe", None)
    best = min(steps, key=steps.__getitem__, default=None)
    return (steps[best] / own, best) if own and best else None


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    found = (ratio(row["plans"], schedule) for schedule in SCHEDULES)
    return " / ".join(f"{each[0]:.3f}" if each else "-" for each in found)


def main(*, models: Annotated[Sequence[str], EACH] = tuple(EACH), again: bool = False) -> None:
    """Compute the cases that are missing, and write the table.

    Args:
        models: compute only the cases of these.
        again: compute again what is there.
    """
    for model, graph, each in graphs(models):
        known = set() if again else {row["devices"] for row in read_rows("counts") if row["model"] == model}
        for devices in (count for count in DEVICES if count not in known):
            row = case_row(graph, model, devices, each * devices)
            append_row("counts", row)
            print(model, devices, _cell(row), sep="\t", flush=True)
    summarise(read_rows("counts"))


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Write the table and the JSON of its totals, and print the cases in which a baseline is faster."""
    # A case that was computed again replaces the one before.
    last = {(row["model"], row["devices"]): row for row in rows}
    found: list[dict[str, Any]] = [
        {"model": model, "devices": devices, "schedule": schedule, "ratio": each[0], "baseline": each[1]}
        for (model, devices), row in last.items()
        for schedule in SCHEDULES
        if (each := ratio(row["plans"], schedule)) is not None
    ]
    slower = [row for row in found if row["ratio"] < 1 - TOLERANCE]
    totals = {
        "cases": len(last),
        "compared": len(found),
        "slower than a baseline": len(slower),
        "least": min(row["ratio"] for row in found),
        "geometric mean": geometric_mean([row["ratio"] for row in found]),
    }
    caption = (__doc__ or "").rpartition("\n\n")[2].strip()
    caption += "\n\nCells: our throughput over that of the best baseline, with 1F1B / with `auto`. Samples per device: "
    caption += ", ".join(f"{model} {each}" for model, each in EACH.items()) + ". "
    caption += ", ".join(f"{name}: {figure:.4g}" for name, figure in totals.items()) + ". Empty cells: not computed."
    lines = [[devices, *(_cell(last.get((model, devices))) for model in EACH)] for devices in DEVICES]
    markdown("counts", "Any number of devices", caption, ["devices", *EACH], lines)
    print(totals, *slower, sep="\n")
    print(f"saved {save('counts', slower, limit_seconds=LIMIT_SECONDS, totals=totals)}")
