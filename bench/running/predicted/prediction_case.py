"""Profile, plan, simulate and train a model on local ranks: predicted and measured results."""

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low

import psutil
import torch

import graphpipe as gp
from bench.running.predicted.pace import Calm, pace
from graphpipe.cluster import Cluster
from graphpipe.cluster.measured_link import with_links
from graphpipe.costs import CostTable
from graphpipe.launch.launcher import launch
from graphpipe.link_profile.ranks import measure_local_links
from graphpipe.model.zoo import ZooModel
from graphpipe.model.zoo.registry import zoo_model
from graphpipe.plans import Plan
from graphpipe.trace import Trace

BATCH, MICRO_BATCH = 64, 8
WARMUP, BLOCKS, STEPS = 5, 8, 5
PROFILES = 5
"""Most profiles of the operators, until one is undisturbed."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""One thread per rank, and no word of torch's about memory that it had before its profiler looked."""
ENOUGH = 15
"""Steps that count: those of the quietest blocks among the undisturbed ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan from measured costs, or one whose costs were measured again."""

    plan: Plan
    zoo: ZooModel
    pace: float
    """Seconds, when the costs were measured."""

    def again(self, calm: Calm) -> "Planned":
        """Return the same stages, with links and operator times measured again."""
        cluster = _cluster(len(self.plan.cluster.devices))
        found, costs = _costs(self.zoo, self.plan.graph, cluster, calm)
        return replace(self, plan=replace(self.plan, cluster=cluster, costs=costs), pace=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Some steps of a plan on this machine."""

    seconds: float
    """Median."""
    processor_seconds: float
    """Of all ranks and their threads in a step, whether or not they had to wait for a core; median."""
    trace: Trace
    """Of the step of median length among others after these, which were recorded."""
    peak_bytes: tuple[float, ...]
    """By rank: the most that torch had allocated in a step."""
    steps: int
    undisturbed: int
    """Blocks of steps that were, of `BLOCKS`."""
    pace: float
    """Seconds, during the steps; median."""
    others: float
    """Share of the machine's cores that other processes used during the steps."""


def planned(model: str, ranks: int, calm: Calm) -> Planned:
    """Return the plan for this machine, from its links and operator times measured while it is undisturbed."""
    zoo = zoo_model(model)
    graph = gp.capture(zoo.module, zoo.example_inputs)
    cluster = _cluster(ranks)
    found, costs = _costs(zoo, graph, cluster, calm)
    plan = gp.plan(graph, costs, cluster, batch_size=BATCH, micro_batch=MICRO_BATCH)
    return Planned(plan=plan, zoo=zoo, pace=found)


def _cluster(ranks: int) -> Cluster:
    return with_links(gp.Cluster.preset(f"local:{ranks}"), measure_local_links(ranks))


def _costs(zoo: ZooModel, graph: gp.Graph, cluster: Cluster, calm: Calm) -> tuple[float, CostTable]:
    inputs, targets = zoo.batch(torch.Generator().manual_seed(0), BATCH)
    found: list[tuple[float, CostTable]] = []
    for _ in range(PROFILES):
        before = pace()
        costs = gp.profile(zoo.module, inputs, cluster, graph=graph, loss_fn=zoo.loss_fn, targets=targets)
        found.append((max(before, pace()), costs))
        if calm.agrees(found[-1][0]):
            break
    return min(found, key=lambda each: each[0])


def measured(model: str, plan: Plan, calm: Calm) -> Measured:
    """Train with one rank per device, and return what the quietest steps took; `calm` is of as many ranks."""
    ranks = len(plan.used_devices)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        plan.save(job.with_name("plan.json"))
        case = {"plan": str(job.with_name("plan.json")), "model": model}
        job.write_text(json.dumps(case | {"warmup": WARMUP, "blocks": BLOCKS, "steps": STEPS}))
        launch("bench.running.predicted.prediction_rank:train", ranks, arguments=[str(job)], environment=ENVIRONMENT)
        own = [json.loads(Path(f"{job}.rank-{rank}").read_text()) for rank in range(ranks)]
        others = [_others([rank["blocks"][block] for rank in own]) for block in range(BLOCKS)]
        paces = [sum(rank["blocks"][block]["pace"] for rank in own) / ranks for block in range(BLOCKS)]
        calm.agrees(min(paces))
        disturbed = [not calm.agrees(each) for each in paces]
        quiet = sorted(range(BLOCKS), key=lambda block: (disturbed[block], others[block]))[: ENOUGH // STEPS]
        traces = [Trace.load(f"{job}.trace-{block}-{step}") for block in quiet for step in range(STEPS)]
    steps = [[rank["blocks"][block]["timed"][step] for rank in own] for block in quiet for step in range(STEPS)]
    lengths = [trace.step_seconds for trace in traces]
    return Measured(
        seconds=median(max(seconds for seconds, _ in ranks) for ranks in steps),
        processor_seconds=median(sum(processor for _, processor in ranks) for ranks in steps),
        trace=traces[lengths.index(median_low(lengths))],
        peak_bytes=tuple(rank["peak_bytes"] for rank in own),
        steps=len(steps),
        undisturbed=BLOCKS - sum(disturbed),
        pace=median(paces[block] for block in quiet),
        others=median(others[block] for block in quiet),
    )


def _others(ranks: list[dict[str, float]]) -> float:
    cores = psutil.cpu_count() or 1
    seconds = ranks[0]["seconds"]
    return max(0.0, 1.0 - (ranks[0]["idle"] + sum(rank["own"] for rank in ranks)) / (cores * seconds))
