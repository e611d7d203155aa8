"""Plans for clusters of unequal devices: partitions made for each device type, and exchanges of devices."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from graphpipe.costs import CostModel
from graphpipe.planners.improve.unequal_intervals import TypedPart, unequal_partitions
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import bottleneck_seconds
from graphpipe.plans.plan import Plan

_SHARES_IN_FLIGHT = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Shares of the mini-batch assumed in flight at every stage, tried in turn until the plans found fit in memory."""
_PASSES = 3


def typed_plans(problem: Problem, options: Options, known: Sequence[Plan], *, planner: str) -> list[Plan]:
    """Return plans in which each stage has devices of one type and work in proportion to their speed.

    The list is empty if all devices are of one type.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        known: plans found so far; a plan slower than all of them is not returned.
        planner: name written into the plans.
    """
    tail = WholeBatchTail.of(problem.graph)
    if tail.before is None or len({device.type for device in problem.cluster.devices}) == 1:
        return []
    costs = CostModel.of(problem.graph, problem.costs, problem.cluster)
    ceiling = min(map(options.evaluate, known), default=float("inf"))
    sizes = [options.micro_batch] if options.micro_batch else None
    found: list[Plan] = []
    for share in _SHARES_IN_FLIGHT:
        partitions = unequal_partitions(problem, costs, tail.before, sizes, ceiling, share)
        plans = [plan for parts in partitions for plan in _finished(problem, tail, parts, planner)]
        fitting = [plan for plan in plans if memory_shortfall(plan) <= 0]
        found += fitting
        if len(fitting) == len(plans):
            break
    return found


def _finished(problem: Problem, tail: WholeBatchTail, typed: Sequence[TypedPart], planner: str) -> list[Plan]:
    """Return the plans of a partition: one, or one per device choice for the whole-batch tail."""
    parts = [replace(each.part, recompute=problem.recompute) for each in typed]
    types = [each.type for each in typed]
    if not tail.ops:
        return [assemble(problem, parts, planner=planner, types=types)]
    last, whole = len(parts), [*parts, tail.part(problem)]
    plans = [
        assemble(problem, whole, planner=planner, hosts={last: host}, types=[*types, types[host]])
        for host in tail.hosts(problem, parts)
    ]
    own = [assemble(problem, whole, planner=planner, types=[*types, spare]) for spare in _spare(problem, parts, types)]
    return [*plans, *own]


def _spare(problem: Problem, parts: Sequence[Part], types: Sequence[str]) -> list[str]:
    """Return the types with devices left."""
    left = Counter(device.type for device in problem.cluster.devices)
    for part, kind in zip(parts, types, strict=True):
        left[kind] -= part.degree
    return sorted(kind for kind, count in left.items() if count > 0)


def exchanged(plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one in which stages of equal degree have exchanged devices of unequal types.

    Hill climbing over pairs of stages: keep an exchange that shortens the step and fits in memory, until a whole pass
    changes nothing.
    """
    best, seconds = plan, None
    for _ in range(_PASSES):
        start = best
        for one, other in combinations(sorted({stage.devices for stage in best.stages}), 2):
            if _alike(plan, one, other):
                continue
            trial = _exchange(best, dict(zip(one + other, other + one, strict=True)))
            seconds = options.evaluate(best) if seconds is None else seconds
            promising = memory_shortfall(trial) <= 0 and plan.batch_size * bottleneck_seconds(trial) < seconds
            if promising and (trial_seconds := options.evaluate(trial)) < seconds:
                best, seconds = trial, trial_seconds
        if best is start:
            break
    return best


def _alike(plan: Plan, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether an exchange is impossible or changes nothing."""
    devices = plan.cluster.devices
    unequal = len(one) == len(other) and not set(one) & set(other)
    return not unequal or Counter(devices[at].type for at in one) == Counter(devices[at].type for at in other)


def _exchange(plan: Plan, devices: dict[int, int]) -> Plan:
    stages = (
        replace(stage, devices=tuple(sorted(devices.get(device, device) for device in stage.devices)))
        for stage in plan.stages
    )
    return replace(plan, stages=tuple(stages))
