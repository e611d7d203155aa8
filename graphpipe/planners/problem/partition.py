"""A partition: the operators of each stage and its data-parallel degree, before devices and samples are assigned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import inf
from typing import Literal

from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel, CostTable, Recompute, State
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.problem.assign_devices import place
from graphpipe.plans.in_flight import Count, delay_of, in_flight_samples, most_in_flight_of, versions_of
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Predictor, Stage, StageEdge, WeightPolicy
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.schedule.segments.planned_versions import with_policy

Crossing = dict[tuple[int, int], float]
"""Bytes per sample between stages, by the positions of both."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stage without devices and samples in flight."""

    ops: tuple[str, ...]
    degree: int
    micro_batch: int
    burst: int = 1
    recompute: Recompute = "none"
    state: State = "whole"
    offload: tuple[str, ...] = ()

    @staticmethod
    def of(stage: Stage) -> "Part":
        """Return a stage without its devices and samples in flight."""
        return Part(
            stage.ops,
            stage.degree,
            stage.micro_batch,
            burst=stage.burst,
            recompute=stage.recompute,
            state=stage.state,
            offload=stage.offload,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """The input of every planner."""

    graph: Graph
    costs: CostTable
    cluster: Cluster
    batch_size: int
    recompute: Literal["none", "full"] = "none"
    """What all stages recompute, unless the planner chooses for each stage."""
    state: State = "whole"
    """What the replicas of all stages shard."""
    trains: bool = True
    """Whether to plan for training, or else for inference."""
    message_bandwidth: float | None = None
    """Bytes per second that a search assumes between stages. None: the first of the cluster's `LinkLevels`."""
    weights: WeightPolicy = "flush"
    """Which weights a micro-batch sees. It decides how many samples are in flight and how many versions are kept."""
    predictor: Predictor = ""
    """What predicts the weights under the policy `predict`."""

    @property
    def work(self) -> int:
        """Operators times devices, which say how long searches take."""
        return len(self.graph.ops) * len(self.cluster.devices)

    def in_flight(
        self, micro_batches: Sequence[int], bursts: Sequence[int], successors: Sequence[Sequence[int]]
    ) -> tuple[int, ...]:
        """Return the samples in flight of every stage, given in topological order."""
        if self.weights == "flush":
            return in_flight_samples(self.batch_size, micro_batches, bursts, successors)
        most = [most_in_flight_of(self.weights, self.batch_size, size) for size in micro_batches]
        samples = in_flight_samples(inf, micro_batches, bursts, successors)
        return tuple(int(min(count, limit)) for count, limit in zip(samples, most, strict=True))

    def versions(self, in_flight: Count, micro_batch: Count) -> Count:
        """Return how many versions of its weights a stage keeps, by its samples in flight.

        Under `vertical-sync` it is at least as many, because every stage is as late as the latest.
        """
        return versions_of(
            self.weights, self.predictor, delay_of(self.weights, in_flight, micro_batch, self.batch_size)
        )


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
    crossing: Crossing | None = None,
) -> Plan:
    """Return the plan of a partition, with stage edges, devices and samples in flight.

    Args:
        problem: graph, costs, cluster and mini-batch size.
        parts: the stages, in a topological order.
        planner: name of the planner.
        schedule: name of the scheduler.
        chain: run the stages as a sequential pipeline. Stages that do not feed each other then follow each other
            through edges of 0 bytes, so that the warm-up includes every stage.
        hosts: stages (by position) without devices of their own, and the stage whose devices they share.
        types: the device type of every stage; None: any.
        devices: of every stage; None places the stages by `hosts` and `types`.
        crossing: the bytes between the stages, if they are known.

    Raises:
        InvalidInput: a stage feeds one before it.
    """
    crossing = crossing_bytes(problem.graph, parts) if crossing is None else crossing
    if back := [pair for pair in crossing if pair[0] >= pair[1]]:
        source, target = back[0]
        raise InvalidInput(
            f"part {source} feeds part {target}, which stands before it",
            where=f"planner '{planner}'",
            remedy="Give the parts in a topological order, or call assemble_in_order.",
        )
    if chain:
        crossing = crossing | {
            (stage, stage + 1): crossing.get((stage, stage + 1), 0.0) for stage in range(len(parts) - 1)
        }
    edges = [(source, target, count) for (source, target), count in sorted(crossing.items())]
    placed = _placed(problem, parts, edges, hosts or {}, types) if devices is None else devices
    successors: list[list[int]] = [[] for _ in parts]
    for source, target, _ in edges:
        successors[source].append(target)
    in_flight = problem.in_flight([part.micro_batch for part in parts], [part.burst for part in parts], successors)
    stages = tuple(
        Stage(
            name=f"s{position}",
            ops=part.ops,
            devices=placed[position],
            micro_batch=part.micro_batch,
            in_flight=in_flight[position],
            burst=part.burst,
            recompute=part.recompute,
            state=part.state if part.degree > 1 else "whole",
            offload=part.offload,
        )
        for position, part in enumerate(parts)
    )
    plan = Plan(
        graph=problem.graph,
        cluster=problem.cluster,
        costs=problem.costs,
        batch_size=problem.batch_size,
        stages=stages,
        edges=tuple(StageEdge(source=s, target=t, bytes_per_sample=count) for s, t, count in edges),
        schedule=schedule,
        planner=planner,
        trains=problem.trains,
    )
    if problem.weights != "flush":
        return with_policy(plan, problem.weights, problem.predictor)
    return with_in_flight_of(find_scheduler(schedule), plan)


def with_in_flight_of(scheduler: Scheduler, plan: Plan) -> Plan:
    """Return a plan that has the samples in flight of 1F1B with those that a scheduler needs."""
    if scheduler.in_flight is None:
        return plan
    pairs = zip(plan.stages, scheduler.in_flight(plan), strict=True)
    return replace(plan, stages=tuple(replace(stage, in_flight=count) for stage, count in pairs))


def _placed(
    problem: Problem,
    parts: Sequence[Part],
    edges: Sequence[tuple[int, int, float]],
    hosts: dict[int, int],
    types: Sequence[str] | None,
) -> list[tuple[int, ...]]:
    """Return the devices of every stage; a stage with a host takes the first devices of the host."""
    own = [stage for stage in range(len(parts)) if stage not in hosts]
    rank = {stage: position for position, stage in enumerate(own)}
    near = [(rank[s], rank[t], count) for s, t, count in edges if s in rank and t in rank]
    own_types = [types[stage] for stage in own] if types else None
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)

    def summed_bytes(rank: int) -> float:
        return costs.parameter_bytes.gradients(parts[own[rank]].ops)

    teams = place(problem.cluster, [parts[stage].degree for stage in own], near, own_types, summed_bytes)
    return [teams[rank[hosts.get(position, position)]][: part.degree] for position, part in enumerate(parts)]


def is_serial(graph: Graph) -> bool:
    """Return whether each operator reads the one before it, so that all pipelines are sequential."""
    return all(before in graph.predecessors[after] for before, after in pairwise(graph.order))


def is_chain(plan: Plan) -> bool:
    """Return whether each stage follows the one before it, as in a sequential pipeline."""
    links = {(edge.source, edge.target) for edge in plan.edges}
    return all((stage, stage + 1) in links for stage in range(len(plan.stages) - 1))


def crossing_bytes(graph: Graph, parts: Sequence[Part]) -> Crossing:
    """Return bytes per sample between stages; a value that a stage reads several times counts once."""
    index, stage_of = graph.index, [0] * len(graph.ops)
    for position, part in enumerate(parts):
        for name in part.ops:
            stage_of[index[name]] = position
    sent: dict[tuple[int, int, int], float] = {}
    for writer, reader, value, count in graph.numbered_reads:
        source, target = stage_of[writer], stage_of[reader]
        if source != target:
            key = (source, target, value)
            if sent.get(key, -1.0) < count:
                sent[key] = count
    crossing: Crossing = {}
    for (source, target, _), count in sent.items():
        crossing[source, target] = crossing.get((source, target), 0.0) + count
    return crossing


def assemble_in_order(
    problem: Problem,
    parts: Sequence[Part],
    devices: Sequence[tuple[int, ...]] | None,
    *,
    planner: str,
    schedule: str = "1f1b",
    chain: bool = False,
) -> Plan | None:
    """Return the plan of parts in any order (see `assemble`); None if values cannot go forward in any order."""
    crossing = crossing_bytes(problem.graph, parts)
    if (order := stage_order(len(parts), crossing)) is None:
        return None
    if order != range(len(parts)):
        parts, devices = [parts[part] for part in order], devices and [devices[part] for part in order]
        place = {part: position for position, part in enumerate(order)}
        crossing = {(place[source], place[target]): count for (source, target), count in crossing.items()}
    return assemble(problem, parts, planner=planner, schedule=schedule, chain=chain, devices=devices, crossing=crossing)


def stage_order(count: int, crossing: Crossing) -> Sequence[int] | None:
    """Return an order of so many stages in which values go forward; None if there is none."""
    if all(source < target for source, target in crossing):
        return range(count)
    sorter = TopologicalSorter({part: set[int]() for part in range(count)})
    for source, target in crossing:
        sorter.add(target, source)
    try:
        return list(sorter.static_order())
    except CycleError:
        return None
