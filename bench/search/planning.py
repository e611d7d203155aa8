"""Search time of the planners, and the graph pipeline against the sequential one, on the paper's models.

Everything but the search seconds is simulated, on the `summit` preset's analytic V100 model. Search seconds are the
median of three searches, processor time of this process, capture and imports apart.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import graphpipe as gp
from bench.record import save
from graphpipe.model.zoo import zoo

MODELS = {"mmt": 16, "dlrm": 128, "candle-uno": 128, "case-study": 16}
"""Samples of a mini-batch per device."""
DEVICES = (4, 8, 16, 32)
SCALE = (("mmt", 256),)
REPEATS = 3


def _row(graph: gp.Graph, model: str, devices: int, planner: str, repeats: int) -> dict[str, Any]:
    cluster = gp.Cluster.preset(f"summit:{devices // 4}x4")
    costs = gp.estimate(graph, cluster)
    batch = MODELS[model] * devices

    def search() -> tuple[float, gp.Plan]:
        start = time.process_time()
        found = gp.plan(graph, costs, cluster, batch_size=batch, planner=planner)
        return time.process_time() - start, found

    seconds, plans = zip(*(search() for _ in range(repeats)), strict=True)
    plan = plans[0]
    assert plan.prediction is not None
    return {
        "model": model,
        "devices": devices,
        "batch": batch,
        "planner": planner,
        "search_seconds": statistics.median(seconds),
        "samples_per_second": batch / plan.prediction.step_seconds,
        "bubble_fraction": plan.prediction.bubble_fraction,
        "stages": len(plan.stages),
        "depth": plan.depth,
        "micro_batch": plan.stages[0].micro_batch,
        "peak_bytes": max(plan.prediction.peak_bytes),
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    chains = {(row["model"], row["devices"]): row for row in rows if row["planner"] == "spp"}
    print(f"{'model':12}{'devices':>8}{'search s':>10}{'samples/s':>11}{'depth':>7}{'m-batch':>9}{'/ chain':>9}")
    for row in rows:
        if row["planner"] == "graphpipe":
            chain = chains.get((row["model"], row["devices"]))
            ratio = f"{row['samples_per_second'] / chain['samples_per_second']:.2f}" if chain else "-"
            print(
                f"{row['model']:12}{row['devices']:>8}{row['search_seconds']:>10.2f}{row['samples_per_second']:>11.0f}"
                f"{row['depth']:>7}{row['micro_batch']:>9}{ratio:>9}"
            )


def main() -> None:
    """Run the benchmark, print the table and save the rows."""
    rows: list[dict[str, Any]] = []
    for model in MODELS:
        graph = gp.capture(*zoo(model))
        for devices in DEVICES:
            rows += [_row(graph, model, devices, planner, REPEATS) for planner in ("graphpipe", "spp")]
        for name, devices in SCALE:
            if name == model:
                rows.append(_row(graph, model, devices, "graphpipe", 1))
    _print(rows)
    print(f"saved {save('planning', rows, simulated='all but search_seconds, summit preset, analytic V100')}")
