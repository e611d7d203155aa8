"""Pipelines that pass over the devices several times.

The operators are cut into more intervals than there are teams of devices. Two teams, two rounds, stages 0 to 3:

    cyclic    team 0 hosts 0 and 2, team 1 hosts 1 and 3      the interleaved placement of Megatron-LM
    V         team 0 hosts 0 and 3, team 1 hosts 1 and 2      the first and the last stage are neighbours

Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM (SC 2021), section
2.2, interleave stages. Qi et al., Pipeline Parallelism with Controllable Memory (2024), place stages in a V.

With one team, all devices host all stages. Each stage then sums its gradients while the stages before it still compute.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from graphpipe.costs import CostModel
from graphpipe.errors import Infeasible
from graphpipe.planners.problem.limits import HALVINGS, MANY
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.stage_costs import stage_seconds, update_seconds_per_byte
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A cut of the operators into stages, and the team of devices that hosts each."""

    cuts: tuple[tuple[str, ...], ...]
    teams: int
    micro_batch: int
    turns: bool
    """Whether every second round goes back over the teams: a V."""
    seconds: float
    """Approximate seconds of a step."""

    def team(self, stage: int) -> int:
        """Return the team of a stage."""
        turn, place = divmod(stage, self.teams)
        return self.teams - 1 - place if self.turns and turn % 2 else place


def plan_in_a_v(problem: Problem, options: Options, *, planner: str) -> Plan:
    """Return the best pipeline whose devices host two stages each in a V, under the caller's schedule.

    Raises:
        Infeasible: none fits in memory, or there are too few operators or micro-batches.
    """
    if found := folded_plans(problem, options, 2, planner=planner, most=options.effort.ranked, in_a_v=True):
        return options.chosen(found)
    raise Infeasible(
        "no pipeline whose devices host two stages each in a V fits",
        remedy="Use another schedule. It needs two operators and two micro-batches for each of several devices.",
    )


def folded_plans(
    problem: Problem, options: Options, rounds: int, *, planner: str, most: int, in_a_v: bool = False
) -> list[Plan]:
    """Return the plans of the most promising folds that fit in memory under 1F1B.

    Args:
        problem: graph, costs, cluster and batch. If devices differ, teams are as fast as their slowest ones could be.
        options: the caller's.
        rounds: stages that every device hosts.
        planner: name written into the plans.
        most: plans to return.
        in_a_v: only those that turn back over the teams, with at least two micro-batches for each team.
    """
    tail = WholeBatchTail.of(problem.graph)
    if tail.before is None:
        return []
    plans: list[Plan] = []
    folds = _folds(problem, options, rounds, tail.before.order)
    if in_a_v:
        folds = (fold for fold in folds if fold.turns and problem.batch_size >= 2 * fold.teams * fold.micro_batch)
    for fold in sorted(folds, key=lambda fold: fold.seconds):
        plan = _folded(problem, tail, fold, planner)
        if memory_shortfall(plan) <= 0:
            plans.append(plan)
        if len(plans) == most:
            break
    return plans


def _folds(problem: Problem, options: Options, rounds: int, order: Sequence[str]) -> Iterator[Fold]:
    devices = len(problem.cluster.devices)
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    sizes = options.sizes(problem.batch_size)
    most = min(MANY, len(order)) // rounds
    for teams in (count for count in range(1, min(devices, most) + 1) if devices % count == 0):
        for size in sizes:
            count, degree = problem.batch_size // size, devices // teams
            if size % degree == 0 and count <= MANY:
                seconds = stage_seconds(problem, costs, size, degree)
                cuts = _balanced(order, [float(seconds[problem.graph.index[op]]) for op in order], rounds * teams)
                yield from _placements(problem, costs, cuts, teams, size)


def _placements(
    problem: Problem, costs: CostModel, cuts: Sequence[tuple[str, ...]], teams: int, size: int
) -> Iterator[Fold]:
    degree = len(problem.cluster.devices) // teams
    op_seconds = np.max([np.sum(costs.seconds(kind, size / degree), axis=0) for kind in problem.cluster.types], axis=0)
    work = [float(op_seconds[costs.positions(ops)].sum()) for ops in cuts]
    reduced = costs.op_bytes.trainable[costs.positions(cuts[0])].sum() * update_seconds_per_byte(problem, degree)
    for turns in (False, True) if teams > 1 else (False,):
        fold = Fold(cuts=tuple(cuts), teams=teams, micro_batch=size, turns=turns, seconds=0.0)
        load = [0.0] * teams
        for stage, seconds in enumerate(work):
            load[fold.team(stage)] += seconds
        step = problem.batch_size / size * max(load) + (teams - 1) * max(work) + float(reduced)
        yield replace(fold, seconds=step)


def _folded(problem: Problem, tail: WholeBatchTail, fold: Fold, planner: str) -> Plan:
    near, degree = problem.cluster.link_levels.near_first, len(problem.cluster.devices) // fold.teams
    parts = [Part(ops, degree, fold.micro_batch, recompute=problem.recompute, state=problem.state) for ops in fold.cuts]
    teams = [tuple(sorted(near[team * degree : (team + 1) * degree])) for team in range(fold.teams)]
    devices = [teams[fold.team(stage)] for stage in range(len(parts))]
    if tail.ops:
        host = tail.hosts(problem, parts)[-1]
        parts, devices = [*parts, tail.part(problem)], [*devices, devices[host][:1]]
    return assemble(problem, parts, planner=planner, devices=devices)


def _balanced(order: Sequence[str], seconds: Sequence[float], stages: int) -> list[tuple[str, ...]]:
    """Cut the operators into intervals, of which the longest is about as short as it can be."""
    sums = [0.0, *accumulate(seconds)]
    low, high = max(sums[-1] / stages, *seconds), sums[-1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_ends(sums, middle)) <= stages else (middle, high)
    ends = _ends(sums, high)
    while len(ends) < stages:  # The longest intervals that can be cut are cut in two.
        starts = [0, *ends[:-1]]
        _, start, end = max(
            (sums[end] - sums[start], start, end) for start, end in zip(starts, ends, strict=True) if end - start > 1
        )
        half = bisect_right(sums, (sums[start] + sums[end]) / 2, start + 1, end - 1)
        ends = sorted({*ends, min(max(half, start + 1), end - 1)})
    return [tuple(order[start:end]) for start, end in pairwise([0, *ends])]


def _ends(sums: Sequence[float], most: float) -> list[int]:
    """Return the ends of intervals of at most `most` seconds, each as long as possible."""
    ends, start = list[int](), 0
    while start < len(sums) - 1:
        start = max(start + 1, bisect_right(sums, sums[start] + most * (1 + 1e-12)) - 1)
        ends.append(start)
    return ends
