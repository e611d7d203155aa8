"""One case of a benchmark: a planner on a graph, a cluster and a mini-batch, as a row of figures."""

import multiprocessing
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(plan_row(graph, model, devices, batch, name)), daemon=True)
    process.start()
    theirs.close()
    try:
        if ours.poll(seconds):
            return ours.recv()
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
    return {"model": model, "devices": devices, "batch": batch, "planner": name, "status": "timeout"}
