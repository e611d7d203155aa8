"""Plans for clusters of unequal devices: partitions made for each device type."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from graphpipe.costs import CostModel
from graphpipe.planners.problem.limits import SHARES
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.problem.whole_batch_tail import WholeBatchTail
from graphpipe.planners.search.unequal_intervals import TypedPart, unequal_partitions
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.plan import Plan


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
    typed: list[Plan] = []
    for share in SHARES:
        partitions = unequal_partitions(problem, costs, tail.before, sizes, ceiling, share)
        plans = [plan for parts in partitions for plan in _finished(problem, tail, parts, planner)]
        fitting = [plan for plan in plans if memory_shortfall(plan) <= 0]
        typed += fitting
        if len(fitting) == len(plans):
            break
    return typed


def _finished(problem: Problem, tail: WholeBatchTail, typed: Sequence[TypedPart], planner: str) -> list[Plan]:
    """Return the plans of a partition: one, or one per device choice for the whole-batch tail."""
    parts = [replace(stage.part, recompute=problem.recompute, state=problem.state) for stage in typed]
    types = [stage.type for stage in typed]
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
