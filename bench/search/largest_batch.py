"""The largest micro-batch that fits on the same memory, by planner, on models of DawnPiper and vPipe.

Four V100 of 16 GB in one node, a mini-batch of eight micro-batches, stages of one device as in the papers. So only
sizes that neither 2 nor 3 divides are tried, which exclude replicas. Published: up to 4 times the batch of vPipe and 11
times that of PipeDream, and up to 1.5 times the speed of vPipe (DawnPiper).
"""

import time
from typing import Any

import graphpipe as gp
from bench.case import summit
from bench.record import save
from bench.search.memory_models import MODELS
from bench.tables import markdown

PLANNERS: dict[str, dict[str, Any]] = {
    "graphpipe": {"planner": "graphpipe", "schedule": "1f1b", "stages_per_device": 1},
    "dawnpiper": {"planner": "dawnpiper"},
    "vpipe": {"planner": "vpipe"},
    "pipedream": {"planner": "pipedream"},
    "gpipe": {"planner": "gpipe"},
}
DEVICES, MICRO_BATCHES, MOST = 4, 8, 1500
SIZES = [size for size in range(1, MOST) if size % 2 and size % 3]
CAPTION = (
    "Largest micro-batch, and samples per second with the largest one of `vpipe`, **simulated** on 4 analytic V100 of "
    "16 GB (`summit:1x4`) with eight micro-batches and one device a stage. Only sizes that neither 2 nor 3 divides are "
    "tried. fp32 and Adam. Published for DawnPiper: up to 4 times the batch of vPipe, 11 times that of PipeDream, and "
    "1.5 times the speed of vPipe. vPipe and PipeDream keep several versions of the weights there, and all run without "
    "a flush. Here all run 1F1B with a flush, so that there is one version, and `vpipe` and `dawnpiper` decide per "
    "operator of the same graph."
)


def _plan(graph: gp.Graph, name: str, size: int) -> gp.Plan | None:
    cluster = summit(DEVICES)
    costs = gp.estimate(graph, cluster)
    batch = MICRO_BATCHES * size
    try:
        return gp.plan(graph, costs, cluster, batch_size=batch, micro_batch=size, **PLANNERS[name])
    except gp.Infeasible:
        return None


def largest(graph: gp.Graph, name: str) -> tuple[int, gp.Plan] | None:
    """Return the largest size that fits, by doubling and bisection, with its plan."""
    best = _plan(graph, name, SIZES[0])
    if best is None:
        return None
    low, high = 0, 1
    while high < len(SIZES) and (found := _plan(graph, name, SIZES[high])) is not None:
        low, high, best = high, 2 * high, found
    high = min(high, len(SIZES))
    while high - low > 1:
        middle = (low + high) // 2
        found = _plan(graph, name, SIZES[middle])
        low, high, best = (low, middle, best) if found is None else (middle, high, found)
    return SIZES[low], best


def _speed(plan: gp.Plan | None) -> float | None:
    return plan.batch_size / plan.prediction.step_seconds if plan is not None and plan.prediction else None


def main() -> None:
    """Run the benchmark, write JSON and table, and print how many times as large our batches are."""
    rows: list[dict[str, Any]] = []
    lines: list[list[object]] = []
    for model, build in MODELS.items():
        graph, sizes = build(), dict[str, int]()
        for name in PLANNERS:
            start = time.process_time()
            found = largest(graph, name)
            sizes[name] = found[0] if found else 0
            row = {"model": model, "planner": name, "largest": sizes[name], "stages": found and len(found[1].stages)}
            rows.append(row | {"cpu_seconds": time.process_time() - start, "speed": found and _speed(found[1])})
        speeds = {name: _speed(_plan(graph, name, sizes["vpipe"])) for name in PLANNERS}
        for row in rows[-len(PLANNERS) :]:
            row["speed_at_vpipe"] = speeds[row["planner"]]
        shown = ["-" if speed is None else f"{speed:.1f}" for speed in speeds.values()]
        lines.append([model, *(f"{sizes[name]}, {speed}" for name, speed in zip(PLANNERS, shown, strict=True))])
        print(*lines[-1], sep="\t", flush=True)
    markdown("largest-batch", "Largest batch on the same memory", CAPTION, ["model", *PLANNERS], lines)
    print(f"saved {save('largest-batch', rows, targets=ratios(rows))}")


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the most times by which a planner's batch is larger than another's, over all models."""
    by_case = {(row["model"], row["planner"]): row["largest"] for row in rows}
    pairs = [(one, other) for one in ("graphpipe", "dawnpiper") for other in ("vpipe", "pipedream", "gpipe")]
    return {
        f"{one}_over_{other}": max(by_case[model, one] / max(1, by_case[model, other]) for model in MODELS)
        for one, other in pairs
    }
