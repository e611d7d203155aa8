"""Samples of different cost: predicted against measured steps of a model whose samples have 1 to 4 images.

**Measured.** The image layers of `album.py` compute only the images that a sample has, so a sample costs 1x to 4x
there. Layers sleep in proportion to what they compute, so that a rank does not wait for a core. The default planner
plans for the declared shares of samples by number of images (1F1B, mini-batch of 32), or each layer is a stage.
*Trained*: one rank per device takes optimizer steps with the real runtime. *Rehearsed*: the same plan with emulated
compute. Every step has its own random samples, others than those that the prediction drew. *Balanced*: the plan and
the training put samples into an order of equal load, and stages may be as far ahead as memory allows, so that
replicas do not wait for each other in single micro-batches.

Predicted is what the plan says, the mean of 16 drawn steps, and measured is the median. Of the mean load: what a step
would take if every sample had the mean load, so that nothing waits for a heavy micro-batch or replica. Over it: the
measured step over what the plan that is not balanced would take of the mean load. Step by step: the median difference
of a measured step to the simulation of a step with just its samples. Unaware: the step that the same samples take
with the plan for samples of equal cost.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import graphpipe as gp
from bench.record import save
from bench.running.predicted.album import LAYERS, cluster, costs, graph
from bench.tables import markdown
from graphpipe.cli.main import main as graphpipe
from graphpipe.costs import declare_loads
from graphpipe.launch.launcher import launch
from graphpipe.planners.raise_in_flight import with_slack
from graphpipe.planning.problem import predicted
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.step_loads import DRAWN_STEPS, draw_loads

TARGET = 0.10
BATCH, STEPS, DEVICES = 32, 11, 5
MIXES: Mapping[str, Mapping[float, float]] = {
    "25 % each": {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25},
    "70 % 1, 30 % 4": {1: 0.7, 4: 0.3},
}
HEADER = (
    *("images", "plan", "stages", "run", "predicted s", "measured s", "difference", "of the mean load s", "over it"),
    *("step by step", "unaware s"),
)


def main() -> None:
    """Run the benchmark, write JSON and table."""
    model = graph()
    rows: list[dict[str, Any]] = []
    for mix in MIXES:
        plan = _planned(model, mix)
        rows += [_row(mix, "planned", plan, run) for run in ("trained", "rehearsed")]
        rows.append(_row(mix, "balanced", _planned(model, mix, balance=True), "trained", mean_of=plan))
    rows.append(_row("25 % each", "a stage per layer", _by_layer(model, "25 % each"), "trained"))
    title, _, caption = (__doc__ or "").partition("\n\n")
    markdown("loads", title.rstrip("."), caption.strip(), HEADER, [_line(row) for row in rows])
    missed = [row["images"] for row in rows if abs(row["difference"]) > TARGET]
    print(f"saved {save('loads', rows, target=TARGET, missed=missed, load=os.getloadavg())}")


def _loads(mix: str) -> dict[str, Mapping[float, float]]:
    return {"v*": MIXES[mix]}


def _planned(model: gp.Graph, mix: str, *, balance: bool = False) -> gp.Plan:
    devices = cluster(DEVICES)
    found = costs(model, devices)
    plan = gp.plan(model, found, devices, batch_size=BATCH, schedule="1f1b", loads=_loads(mix), balance=balance)
    return predicted(with_slack(plan)) if balance else plan


def _by_layer(model: gp.Graph, mix: str) -> gp.Plan:
    devices = cluster(len(LAYERS))
    stages = [gp.HandStage(ops=(name,), devices=(n,), micro_batch=2) for n, name in enumerate(LAYERS)]
    return gp.hand_plan(model, costs(model, devices), devices, batch_size=BATCH, stages=stages, loads=_loads(mix))


def _unaware(plan: gp.Plan, mix: str) -> float:
    # The plan for samples of equal cost, with the samples that it then gets.
    plain = gp.plan(plan.graph, replace(plan.costs, loads=()), plan.cluster, batch_size=BATCH, schedule="1f1b")
    loads = declare_loads(plan.graph, _loads(mix))
    return predict(replace(plain, costs=replace(plain.costs, loads=loads))).step_seconds


def _row(mix: str, name: str, plan: gp.Plan, run: str, mean_of: gp.Plan | None = None) -> dict[str, Any]:
    assert plan.prediction is not None
    row: dict[str, Any] = {
        "images": mix,
        "plan": name,
        "stages": [f"{'+'.join(stage.ops)} x{stage.degree}" for stage in plan.stages],
        "micro_batch": plan.stages[0].micro_batch,
        "run": run,
        "mean_load_seconds": (mean := step_seconds(mean_of or plan)),
        "unaware_seconds": _unaware(plan, mix),
    }
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        balance = name == "balanced"
        row |= _trained(plan, Path(folder), balance=balance) if run == "trained" else _rehearsed(Path(folder))
    row["over_mean_load"] = row["measured_seconds"] / mean
    row["difference"] = row["measured_seconds"] / row["predicted_seconds"] - 1
    print(*_line(row), sep="\t", flush=True)
    return row


def _trained(plan: gp.Plan, folder: Path, *, balance: bool) -> dict[str, Any]:
    drawn = [draw_loads(plan, DRAWN_STEPS + step) for step in range(STEPS + 1)]
    job = folder / "job.json"
    job.write_text(json.dumps({"counts": [loads["v*"] for loads in drawn], "balance": balance}))
    ranks = len(plan.used_devices)
    launch(
        "bench.running.predicted.loads_rank:train", ranks, arguments=[str(job)], environment={"OMP_NUM_THREADS": "1"}
    )
    taken = [
        max(each) for each in zip(*(json.loads(Path(f"{job}.rank-{n}").read_text()) for n in range(ranks)), strict=True)
    ]
    expected = [gp.simulate(plan, loads=loads).step_seconds for loads in drawn[1:]]
    assert plan.prediction is not None
    return {
        "predicted_seconds": plan.prediction.step_seconds,
        "measured_seconds": median(taken),
        "steps": taken,
        "steps_predicted": expected,
        "step_by_step": median(one / other - 1 for one, other in zip(taken, expected, strict=True)),
    }


def _rehearsed(folder: Path) -> dict[str, Any]:
    summary = folder / "summary.json"
    words = ["rehearse", str(folder / "plan.json"), "--steps", str(STEPS), "--scale", "1", "--summary", str(summary)]
    code = graphpipe(words)
    assert code == 0, f"graphpipe rehearse ended with {code}"
    found = json.loads(summary.read_text())
    return {
        "predicted_seconds": found["step_seconds_predicted"],
        "measured_seconds": found["step_seconds_measured"],
    }


def _line(row: dict[str, Any]) -> list[object]:
    return [
        row["images"],
        row["plan"],
        ", ".join(row["stages"]),
        row["run"],
        f"{row['predicted_seconds']:.2f}",
        f"{row['measured_seconds']:.2f}",
        f"{row['difference']:+.1%}",
        f"{row['mean_load_seconds']:.2f}",
        f"{row['over_mean_load']:.3f}",
        f"{row['step_by_step']:+.1%}" if "step_by_step" in row else "",
        f"{row['unaware_seconds']:.2f}",
    ]
