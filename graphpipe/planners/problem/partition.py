"""A partition: the operators of each stage and its data-parallel degree, before devices and samples are assigned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Recompute
from graphpipe.graph import Graph
from graphpipe.planners.problem.assign_devices import place
from graphpipe.plans.in_flight import in_flight_samples
from graphpipe.plans.plan import Plan, Stage, StageEdge


@dataclass(frozen=True, slots=True)
class Part:
    """One stage to be."""

    ops: tuple[str, ...]
    degree: int
    micro_batch: int
    burst: int = 1
    recompute: Recompute = "none"


@dataclass(frozen=True, slots=True)
class Problem:
    """What every planner is given."""

    graph: Graph
    costs: CostTable
    cluster: Cluster
    batch_size: int
    recompute: Literal["none", "full"] = "none"
    """What all stages are to recompute, if a planner does not choose for each."""


def assemble(
    problem: Problem,
    parts: Sequence[Part],
    *,
    planner: str,
    schedule: str = "1f1b",
    chain: bool = False,
    hosts: dict[int, int] | None = None,
    types: Sequence[str] | None = None,
    devices: Sequence[tuple[int, ...]] | None = None,
) -> Plan:
    """Return the plan of a partition: stage edges, devices, samples in flight.

    Args:
        problem: graph, costs, cluster and mini-batch size.
        parts: the stages, in a topological order.
        planner: who made the partition.
        schedule: name of the scheduler.
        chain: run the stages as a sequential pipeline: stages that do not feed each other still follow each other
            (edges of no bytes), so that warm-up counts every stage.
        hosts: stages (by position) that get no devices of their own but share those of another stage.
        types: the device type of every stage; None: any.
        devices: of every stage; None places the stages, as `hosts` and `types` say.
    """
    crossing = crossing_bytes(problem.graph, parts)
    if chain:
        crossing |= {(stage, stage + 1): crossing.get((stage, stage + 1), 0.0) for stage in range(len(parts) - 1)}
    edges = [(source, target, count) for (source, target), count in sorted(crossing.items())]
    placed = _placed(problem, parts, edges, hosts or {}, types) if devices is None else devices
    successors: list[list[int]] = [[] for _ in parts]
    for source, target, _ in edges:
        successors[source].append(target)
    if schedule == "gpipe":  # All forwards come before the first backward.
        in_flight = (problem.batch_size,) * len(parts)
    else:
        in_flight = in_flight_samples(
            problem.batch_size, [part.micro_batch for part in parts], [part.burst for part in parts], successors
        )
    stages = tuple(
        Stage(
            name=f"s{position}",
            ops=part.ops,
            devices=placed[position],
            micro_batch=part.micro_batch,
            in_flight=in_flight[position],
            burst=part.burst,
            recompute=part.recompute,
        )
        for position, part in enumerate(parts)
    )
    return Plan(
        graph=problem.graph,
        cluster=problem.cluster,
        costs=problem.costs,
        batch_size=problem.batch_size,
        stages=stages,
        edges=tuple(StageEdge(source=s, target=t, bytes_per_sample=count) for s, t, count in edges),
        schedule=schedule,
        planner=planner,
    )


def _placed(
    problem: Problem,
    parts: Sequence[Part],
    edges: Sequence[tuple[int, int, float]],
    hosts: dict[int, int],
    types: Sequence[str] | None,
) -> list[tuple[int, ...]]:
    """Devices of every stage; those with a host take the first of its devices."""
    own = [stage for stage in range(len(parts)) if stage not in hosts]
    rank = {stage: position for position, stage in enumerate(own)}
    near = [(rank[s], rank[t], count) for s, t, count in edges if s in rank and t in rank]
    own_types = [types[stage] for stage in own] if types else None
    found = place(problem.cluster, [parts[stage].degree for stage in own], near, own_types)
    return [found[rank[hosts.get(position, position)]][: part.degree] for position, part in enumerate(parts)]


def is_chain(plan: Plan) -> bool:
    """Whether each stage follows the one before it, as in a sequential pipeline."""
    links = {(edge.source, edge.target) for edge in plan.edges}
    return all((stage, stage + 1) in links for stage in range(len(plan.stages) - 1))


def crossing_bytes(graph: Graph, parts: Sequence[Part]) -> dict[tuple[int, int], float]:
    """Return bytes per sample between stages; an output that a stage reads several times is sent once."""
    stage_of = {name: position for position, part in enumerate(parts) for name in part.ops}
    sent: dict[tuple[int, int, str], float] = {}
    for edge in graph.edges:
        source, target = stage_of[edge.source], stage_of[edge.target]
        if source != target:
            key = (source, target, edge.source)
            sent[key] = max(sent.get(key, 0.0), edge.bytes_per_sample)
    crossing: dict[tuple[int, int], float] = {}
    for (source, target, _), count in sent.items():
        crossing[source, target] = crossing.get((source, target), 0.0) + count
    return crossing
