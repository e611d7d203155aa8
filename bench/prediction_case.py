"""A model profiled, planned, simulated and then trained on local ranks: what was predicted, and what came."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, median_low

import psutil
import torch

import graphpipe as gp
from graphpipe.model.zoo import zoo_model
from graphpipe.plan import Plan
from graphpipe.run.launch import launch
from graphpipe.trace import Trace

BATCH, MICRO_BATCH = 64, 8
WARMUP, BLOCKS, STEPS = 5, 9, 5
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""One thread per rank, and no word of torch's about memory that it had before its profiler looked."""
ENOUGH = 15
"""Steps that count: those of the quietest blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Some steps of a plan on this machine."""

    seconds: float
    """Median."""
    processor_seconds: float
    """Of all ranks and their threads in a step, whether or not they had to wait for a core; mean."""
    trace: Trace
    """Of the step of median length."""
    peak_bytes: tuple[float, ...]
    """By rank: the most that torch had allocated in a step."""
    steps: int
    others: float
    """Share of the machine's cores that other processes took meanwhile."""


def planned(model: str, ranks: int) -> Plan:
    """Return the plan for the machine this is, by what its operators take here."""
    zoo = zoo_model(model)
    graph, cluster = gp.capture(zoo.module, zoo.example_inputs), gp.Cluster.preset(f"local:{ranks}")
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
    costs = gp.profile(zoo.module, inputs, cluster, graph=graph, loss_fn=zoo.loss_fn, targets=targets)
    return gp.plan(graph, costs, cluster, batch_size=BATCH, micro_batch=MICRO_BATCH)


def measured(model: str, plan: Plan) -> Measured:
    """Train with one rank per device, and return what the quietest steps took."""
    ranks = len(plan.used_devices)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        plan.save(job.with_name("plan.json"))
        case = {"plan": str(job.with_name("plan.json")), "model": model}
        job.write_text(json.dumps(case | {"warmup": WARMUP, "blocks": BLOCKS, "steps": STEPS}))
        launch("bench.prediction_rank:train", ranks, arguments=[str(job)], environment=ENVIRONMENT)
        own = [json.loads(Path(f"{job}.rank-{rank}").read_text()) for rank in range(ranks)]
        others = [_others([rank["blocks"][block] for rank in own]) for block in range(BLOCKS)]
        quiet = sorted(range(BLOCKS), key=others.__getitem__)[: ENOUGH // STEPS]
        traces = [Trace.load(f"{job}.trace-{block}-{step}") for block in quiet for step in range(STEPS)]
    lengths = [trace.step_seconds for trace in traces]
    return Measured(
        seconds=median(lengths),
        processor_seconds=fmean(sum(rank["blocks"][block]["stepping"] for rank in own) for block in quiet) / STEPS,
        trace=traces[lengths.index(median_low(lengths))],
        peak_bytes=tuple(rank["peak_bytes"] for rank in own),
        steps=len(traces),
        others=median(others[block] for block in quiet),
    )


def _others(ranks: list[dict[str, float]]) -> float:
    cores = psutil.cpu_count() or 1
    seconds = ranks[0]["seconds"]
    return max(0.0, 1.0 - (ranks[0]["idle"] + sum(rank["own"] for rank in ranks)) / (cores * seconds))
