"""The default planner against every baseline on 1 to 32 devices.

The cluster is the first devices of `summit` nodes of six. Step times are simulated. Operator times are those of the
analytic V100, or the PipeDream profiles' own (../shared/data/pipedream beside the checkout, skipped if absent). Both
sides have the same schedule: 1F1B, or the best one (`auto`).
"""

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import graphpipe as gp
from bench.profiles import DATA
from bench.record import save
from bench.tables import markdown
from bench.vision_models import vision_graph
from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.model.zoo import zoo
from graphpipe.planners.registry import planner_names

ZOO = {"mmt": 16, "dlrm": 128, "candle-uno": 128, "case-study": 16, "gpt": 16, "two-tower": 16, "unet": 16}
"""Samples of a mini-batch per device."""
VISION = {"resnet18": 16, "squeezenet": 16}
PROFILES = {"gnmt": 32, "vgg16": 32, "resnet50": 32, "inception_v3": 32}
DEVICES = range(1, 33)
BASELINES = tuple(name for name in planner_names(trains=True) if name != "graphpipe")
SCHEDULES = ("1f1b", "auto")
LIMIT_SECONDS = 60.0
"""Of all baselines of one case together."""


def summit(devices: int) -> gp.Cluster:
    """Return V100 in nodes of six, the last node perhaps with fewer."""
    whole = gp.Cluster.preset(f"summit:{-(-devices // 6)}x6")
    return replace(whole, devices=whole.devices[:devices])


def graphs() -> Iterator[tuple[str, gp.Graph, int]]:
    """Yield every model's name, graph and samples per device."""
    yield from ((model, gp.capture(*zoo(model)), each) for model, each in ZOO.items())
    yield from ((model, vision_graph(model), each) for model, each in VISION.items())
    if DATA.exists():
        yield from ((model, read_pipedream(DATA / f"{model}.graph.txt"), each) for model, each in PROFILES.items())


def step_row(graph: gp.Graph, cluster: gp.Cluster, batch: int, planner: str, schedule: str) -> dict[str, Any]:
    """Return the step and search seconds of one planner; step seconds are None if it finds no plan."""
    row: dict[str, Any] = {"planner": planner, "schedule": schedule, "step_seconds": None}
    costs, start = gp.estimate(graph, cluster), time.process_time()
    try:
        plan = gp.plan(graph, costs, cluster, batch_size=batch, planner=planner, schedule=schedule)
    except gp.Infeasible:
        return row | {"search_seconds": time.process_time() - start}
    assert plan.prediction is not None
    # The planner `gpipe` keeps its own schedule under 1f1b.
    return row | {
        "schedule": "auto" if schedule == "auto" else plan.schedule,
        "step_seconds": plan.prediction.step_seconds,
        "search_seconds": time.process_time() - start,
        "stages": [[len(stage.ops), stage.degree, stage.micro_batch] for stage in plan.stages],
    }


def case_rows(graph: gp.Graph, model: str, devices: int, batch: int) -> list[dict[str, Any]]:
    """Return the rows of all planners. Baselines that the limit of seconds cuts off are missing."""
    cluster = summit(devices)
    case = {"model": model, "devices": devices, "batch": batch}
    own = [case | step_row(graph, cluster, batch, "graphpipe", schedule) for schedule in SCHEDULES]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def send() -> None:
        for name in sorted(BASELINES, key=("dapple", "piper").__contains__):
            for schedule in SCHEDULES:
                theirs.send(step_row(graph, cluster, batch, name, schedule))

    process = context.Process(target=send, daemon=True)
    process.start()
    theirs.close()
    deadline, found = time.monotonic() + LIMIT_SECONDS, list[dict[str, Any]]()
    try:
        while ours.poll(max(0.0, deadline - time.monotonic())):
            found.append(case | ours.recv())
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
    return own + found


def ratio(rows: list[dict[str, Any]], schedule: str) -> tuple[float, str] | None:
    """Return our throughput over the best baseline's under a schedule, and that baseline; None without one."""
    steps = {row["planner"]: row["step_seconds"] for row in rows if row["schedule"] == schedule and row["step_seconds"]}
    own = steps.pop("graphpipe", None)
    best = min(steps, key=steps.__getitem__, default=None)
    return (steps[best] / own, best) if own and best else None


def _cell(rows: list[dict[str, Any]]) -> str:
    found = (ratio(rows, schedule) for schedule in SCHEDULES)
    return " / ".join(f"{each[0]:.3f}" if each else "-" for each in found)


def main() -> None:
    """Run the benchmark, write JSON and table."""
    rows: list[dict[str, Any]] = []
    cells: dict[int, list[str]] = {devices: [] for devices in DEVICES}
    names: list[str] = []
    for model, graph, each in graphs():
        names.append(model)
        for devices in DEVICES:
            found = case_rows(graph, model, devices, each * devices)
            rows += found
            cells[devices].append(_cell(found))
            print(model, devices, cells[devices][-1], sep="\t", flush=True)
    caption = (__doc__ or "").partition("\n\n")[2].strip()
    caption += "\n\nCells: our throughput over that of the best baseline, with 1F1B / with `auto`. Samples per device: "
    caption += ", ".join(f"{model} {each}" for model, each in {**ZOO, **VISION, **PROFILES}.items()) + "."
    lines = [[devices, *line] for devices, line in cells.items()]
    markdown("counts", "Any number of devices", caption, ["devices", *names], lines)
    print(f"saved {save('counts', rows, limit_seconds=LIMIT_SECONDS)}")


if __name__ == "__main__":
    main()
