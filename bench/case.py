"""One case of a benchmark: a planner on a graph, a cluster and a mini-batch, as a row of figures."""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import graphpipe as gp

PLANNERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "graphpipe": {"planner": "graphpipe", "schedule": "auto", "stages_per_device": 1},
        "1f1b": {"planner": "graphpipe", "schedule": "1f1b", "stages_per_device": 1},
        "published": {"planner": "graphpipe", "objective": "bottleneck"},
        "pipedream": {"planner": "pipedream"},
        "piper": {"planner": "piper"},
        "spp": {"planner": "spp"},
        "gpipe": {"planner": "gpipe"},
        "dapple": {"planner": "dapple"},
        "pipedream-2bw": {"planner": "pipedream-2bw"},
    }
)
"""Names in the tables, and the arguments of `gp.plan`. A device hosts one stage, as in the plans of the baselines;
`bench/search/sharing.py` measures what more stages gain."""
Result = TypeVar("Result")
SIMULATED = "summit preset, analytic V100"


def summit(devices: int) -> gp.Cluster:
    """Return `devices` V100 in nodes of four."""
    return gp.Cluster.preset(f"summit:{devices // 4}x4")


def plan_row(graph: gp.Graph, model: str, devices: int, batch: int, name: str, **options: Any) -> dict[str, Any]:
    """Return the figures of one planner on V100 nodes; status is `ok` or `infeasible`."""
    cluster = summit(devices)
    costs = gp.estimate(graph, cluster)
    row: dict[str, Any] = {"model": model, "devices": devices, "batch": batch, "planner": name}
    start = time.process_time()
    try:
        plan = gp.plan(graph, costs, cluster, batch_size=batch, **{**PLANNERS[name], **options})
    except gp.Infeasible as reason:
        return row | {"status": "infeasible", "reason": str(reason)}
    assert plan.prediction is not None
    return row | {
        "status": "ok",
        "cpu_seconds": time.process_time() - start,
        "samples_per_second": batch / plan.prediction.step_seconds,
        "search_seconds": plan.search_seconds,
        "stages": len(plan.stages),
        "depth": plan.depth,
        "micro_batch": plan.stages[0].micro_batch,
        "schedule": plan.schedule,
        "bubble_fraction": plan.prediction.bubble_fraction,
        "busy_seconds": (1 - plan.prediction.bubble_fraction) * len(plan.used_devices) * plan.prediction.step_seconds,
        "peak_bytes": max(plan.prediction.peak_bytes),
    }


def limited_row(seconds: float, graph: gp.Graph, model: str, devices: int, batch: int, name: str) -> dict[str, Any]:
    """Return `plan_row` run in a separate process, or a row of status `timeout`."""
    row = limited(seconds, lambda: plan_row(graph, model, devices, batch, name))
    return row or {"model": model, "devices": devices, "batch": batch, "planner": name, "status": "timeout"}


def limited(seconds: float, call: Callable[[], Result]) -> Result | None:
    """Return what a function returns in a separate process; None if it does not end in time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(call()), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(seconds) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()
