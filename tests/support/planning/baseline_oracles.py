"""Brute force for the baseline planners: every possible pipeline, with costs taken only from the cost look-up."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

from problems import KIND, cluster, table

from graphpipe.costs import CostModel, Recompute
from graphpipe.errors import Infeasible
from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans.plan import Plan


class Block(NamedTuple):
    """A stage of a pipeline."""

    ops: tuple[str, ...]
    degree: int
    recompute: Recompute = "none"


Pipeline = Sequence[Block]
Price = Callable[[Problem, int, Pipeline], float]


def busy_problem(seed: int, *, most_ops: int = 8, devices: int = 4, tight: bool = False, scale: float = 1.0) -> Problem:
    """Return a random DAG with traffic and parameters. `scale` multiplies all times. `tight` leaves little memory."""
    rng = random.Random(seed)
    count, density = rng.randint(1, most_ops), rng.choice([0.2, 0.5, 0.8])
    ops = tuple(
        Op(
            name=f"o{at}",
            parameter_bytes=rng.choice([0.0, 1e6, 2e7]),
            work=Work(saved_bytes_per_sample=rng.choice([1e6, 3e6])),
        )
        for at in range(count)
    )
    size = [rng.choice([0.0, 1e6, 2e7]) for _ in ops]
    pairs = [(a, b) for b in range(count) for a in range(b) if rng.random() < density]
    edges = tuple(Edge(source=f"o{a}", target=f"o{b}", bytes_per_sample=size[a]) for a, b in pairs)
    graph = Graph(name="busy", ops=ops, edges=edges)
    curves = {op.name: (scale * rng.choice([0, 1e-3]), scale * rng.choice([1, 2, 3, 5]) * 1e-3) for op in ops}
    roomy, memory = cluster(devices), rng.choice([2e8, 3e8, 5e8])
    links = {
        name: replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / scale)
        for name, link in {"intra_node": roomy.intra_node, "inter_node": roomy.inter_node}.items()
    }
    kinds = (replace(KIND, memory_bytes=memory),) if tight else roomy.device_types
    return Problem(graph, table(graph, curves), replace(roomy, device_types=kinds, **links), 16)


def pipelines(problem: Problem, micro_batch: int, *, chain: bool, even: bool) -> Iterator[Pipeline]:
    """Yield every sequence of stages: intervals of the linear order, or all convex sets. `even`: equal degrees."""
    devices = len(problem.cluster.devices)
    degrees = [degree for degree in range(1, devices + 1) if micro_batch % degree == 0]

    def rest(left: tuple[str, ...], free: int, allowed: list[int]) -> Iterator[Pipeline]:
        if not left:
            yield ()
            return
        for ops in heads(problem.graph, left, chain=chain):
            after = tuple(name for name in left if name not in ops)
            for degree in allowed:
                if degree <= free:
                    for tail in rest(after, free - degree, allowed):
                        yield (Block(ops, degree), *tail)

    for allowed in [[degree] for degree in degrees] if even else [degrees]:
        yield from rest(problem.graph.order, devices, allowed)


def heads(graph: Graph, left: tuple[str, ...], *, chain: bool) -> Iterator[tuple[str, ...]]:
    """Yield every possible next stage: a non-empty set whose predecessors are done or in it."""
    if chain:
        yield from (left[:length] for length in range(1, len(left) + 1))
        return
    for mask in range(1, 1 << len(left)):
        chosen = tuple(name for at, name in enumerate(left) if mask >> at & 1)
        outside = set(left) - set(chosen)
        if not any(before in outside for name in chosen for before in graph.predecessors[name]):
            yield chosen


def compute(
    problem: Problem, micro_batch: int, ops: tuple[str, ...], degree: int, recompute: Recompute = "none"
) -> float:
    """Seconds per sample."""
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    task = costs.task_seconds(ops, 0, micro_batch / degree, recompute)
    return (task.forward + task.backward) / micro_batch


def all_reduce(problem: Problem, ops: tuple[str, ...], degree: int) -> float:
    """Seconds per mini-batch."""
    count = sum(problem.graph[name].parameter_bytes for name in ops)
    return CostModel(problem.graph, problem.costs, problem.cluster).all_reduce_seconds(count, tuple(range(degree)))


def moved(problem: Problem, sources: set[str], targets: set[str]) -> float:
    """Seconds per sample of sending outputs, once each, between two sets of operators and gradients back."""
    sent: dict[str, float] = {}
    for edge in problem.graph.edges:
        if edge.source in sources and edge.target in targets:
            sent[edge.source] = max(sent.get(edge.source, 0.0), edge.bytes_per_sample)
    bandwidth = problem.cluster.intra_node.bandwidth_bytes_per_second
    return 2 * sum(sent.values()) / bandwidth


def cuts(problem: Problem, pipeline: Pipeline) -> list[float]:
    """Seconds per sample over the cut before each stage and after the last."""
    names = [set(block.ops) for block in pipeline]
    return [
        moved(problem, set[str]().union(*names[:at]), set[str]().union(*names[at:])) for at in range(len(names) + 1)
    ]


def fits(problem: Problem, micro_batch: int, pipeline: Pipeline, *, whole: bool = False) -> bool:
    """Whether every stage holds its samples under 1F1B (or the whole mini-batch)."""
    costs = CostModel(problem.graph, problem.costs, problem.cluster)
    capacity = problem.cluster.device_types[0].memory_bytes
    for position, (ops, degree, how) in enumerate(pipeline):
        ahead, versions = len(pipeline) - position, 1
        most = problem.batch_size
        if problem.weights == "stash":  # PipeDream: one version more than the mini-batches that overlap.
            most, versions = ahead * micro_batch, 1 + math.ceil((ahead - 1) * micro_batch / problem.batch_size)
        elif problem.weights == "double-buffer":
            most, versions = problem.batch_size + micro_batch, 2
        held = problem.batch_size if whole else min(most, ahead * micro_batch)
        kept = costs.activation_bytes.saved(ops, how) + costs.activation_bytes.received(ops)
        activations = kept * held + costs.activation_bytes.recomputed(ops, how) * micro_batch
        older = (versions - 1) * sum(problem.graph[name].parameter_bytes for name in ops)
        if costs.parameter_bytes.state(ops) + older + activations / degree > capacity:
            return False
    return True


def variants(pipeline: Pipeline, recompute: Literal["never", "each", "all"]) -> Iterator[Pipeline]:
    """Yield the pipeline with every choice of stages that recompute."""
    policies: list[tuple[Recompute, ...]] = [tuple("none" for _ in pipeline)]
    if recompute == "each":
        policies = [*product(("none", "full"), repeat=len(pipeline))]
    elif recompute == "all":
        policies.append(("full",) * len(pipeline))
    for chosen in policies:
        yield [block._replace(recompute=how) for block, how in zip(pipeline, chosen, strict=True)]


def best(
    problem: Problem,
    micro_batch: int,
    price: Price,
    *,
    chain: bool = True,
    even: bool = False,
    whole: bool = False,
    recompute: Literal["never", "each", "all"] = "never",
) -> float:
    """Return the least cost of a pipeline that fits. Each stage, or all, may recompute. Infinite if none fits."""
    drawn = pipelines(problem, micro_batch, chain=chain, even=even)
    every = (variant for pipeline in drawn for variant in variants(pipeline, recompute))
    return min(
        (price(problem, micro_batch, each) for each in every if fits(problem, micro_batch, each, whole=whole)),
        default=float("inf"),
    )


def planned(name: str, problem: Problem, micro_batch: int, price: Price) -> tuple[float, Plan | None]:
    """Return the cost of a planner's plan under its own cost model. Infinite if it does not find a plan."""

    def of(plan: Plan) -> float:
        return price(problem, micro_batch, [Block(each.ops, each.degree, each.recompute) for each in plan.stages])

    try:
        plan = PLANNERS[name].plan(problem, Options(evaluate=of, micro_batch=micro_batch))
    except Infeasible:
        return float("inf"), None
    return of(plan), plan
