"""Plans of searches that assume more memory, fitted into the memory that there is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.improve.exchange_devices import exchanged
from graphpipe.planners.improve.relieved import each_relieved
from graphpipe.planners.problem.limits import CLOSE, MORE_MEMORY, NEAR
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan

Search = Callable[[Problem, Options], Plan]


def faster_with_memory(problem: Problem, options: Options, find: Search, plan: Plan | None) -> Plan | None:
    """Return the plan for the most memory that a search with one stage per device finds; None if it is hardly faster
    than the plan without it, or if nothing fits.

    The search for the plan has also met partitions that need more memory. On devices of one type, the best of these is
    taken. Of 170 plans of the zoo, none was slower than with a further search here.

    Args:
        problem: of which the plan is.
        options: the caller's.
        find: the search.
        plan: the best for the memory that there is; None if nothing fits in it.
    """
    most = inf if plan is None else options.evaluate(plan) / CLOSE

    def evaluate(plan: Plan) -> float:
        return inf if least_step_seconds(plan) > most else options.evaluate(plan)

    quick = replace(options, scheduled=None, most_seconds=most, evaluate=evaluate)
    one_type = len(problem.cluster.types) == 1
    if plan is not None and one_type and (met := options.remembered.with_memory(problem, MORE_MEMORY[0])):
        roomier = exchanged(quick.best(met), quick)
    else:
        try:
            roomier = find(_with_memory(problem, MORE_MEMORY[0]), quick)
        except Infeasible:  # Nothing fits, or every plan is slower.
            return None
    return roomier if _seconds(quick, roomier) <= most else None


def _seconds(options: Options, roomiest: Plan) -> float:
    # Plans that fit may have a schedule that the roomiest one would gain from too.
    return min(options.evaluate(roomiest), options.ranked(roomiest, inf))


def enough_seconds(options: Options, roomiest: Plan) -> float:
    """Return the seconds of a step below which plans with less memory hardly go.

    Args:
        options: the caller's.
        roomiest: the plan for the most memory.
    """
    return CLOSE * _seconds(options, roomiest)


def _with_memory(problem: Problem, times: float) -> Problem:
    types = tuple(replace(kind, memory_bytes=kind.memory_bytes * times) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=types))


def roomier_plans(
    problem: Problem, options: Options, find: Search, roomiest: Plan, most_seconds: float
) -> Iterator[Plan]:
    """Yield the plans of searches with more memory, fitted into the memory that there is.

    A plan for much memory that fits in less is not searched again with less: it stays the best. If that plan is slower
    than the best one so far, less memory is not tried, because decisions about memory do not make it faster.

    Args:
        problem: whose memory is short.
        options: the caller's.
        find: the search.
        roomiest: what it finds for the most memory with one stage per device.
        most_seconds: of a step; slower plans may be left out.
    """
    roomier, needs = roomiest, inf
    for times in MORE_MEMORY:
        if needs <= times:
            continue
        if times != MORE_MEMORY[0]:
            quick = replace(options, scheduled=None, most_seconds=NEAR * most_seconds)
            try:
                roomier = find(_with_memory(problem, times), quick)
            except Infeasible:
                return  # With less memory nothing fits either, or every plan is slower.
        roomier = replace(roomier, cluster=problem.cluster)
        if least_step_seconds(roomier, whole_backwards=not options.splits_backward) >= most_seconds:
            return
        needs = max(need / roomier.cluster.type_of(at).memory_bytes for at, need in needed_bytes(roomier).items())
        if (best := _fastest(options, _fitting(problem, options, roomier, most_seconds))) is not None:
            best = options.under_schedule(best)
            most_seconds = min(most_seconds, options.evaluate(best))
            yield best


def _fastest(options: Options, fitting: Iterator[Plan]) -> Plan | None:
    """Return the fastest plan of equal stages with other decisions, or the first one if it is as fast as without any.

    Then the others are not looked for. None if there are none.
    """
    if (first := next(fitting, None)) is None:
        return None
    kept = replace(first, stages=tuple(stage.keeping for stage in first.stages))
    return first if options.evaluate(first) <= options.evaluate(kept) else options.best([first, *fitting])


def _fitting(problem: Problem, options: Options, plan: Plan, most_seconds: float) -> Iterator[Plan]:
    """Yield the plan with decisions that let it fit, at its micro-batch sizes or the largest halves that fit.

    The caller's micro-batch size, if there is one, stays as it is.
    """
    neighbours = options.offload_to == "neighbours"
    while (first := next(fitting := each_relieved(plan, most_seconds, neighbours=neighbours), None)) is None:
        if options.micro_batch is not None:
            return
        parts = [replace(part, micro_batch=part.micro_batch // 2) for part in map(Part.of, plan.stages)]
        if any(2 * half.micro_batch != stage.micro_batch for half, stage in zip(parts, plan.stages, strict=True)):
            return
        if any(part.micro_batch % part.degree for part in parts) or _whole_batch(plan):
            return
        devices = [stage.devices for stage in plan.stages]
        plan = assemble(problem, parts, planner=plan.planner, chain=is_chain(plan), devices=devices)
    yield first
    yield from fitting


def _whole_batch(plan: Plan) -> bool:
    return any(op.whole_batch for op in plan.graph.ops)
