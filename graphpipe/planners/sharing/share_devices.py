"""Search plans in which devices host several stages, and keep the best if it is faster than the plan without them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.problem.limits import FAR, FEW_SHARED_TASKS, GAIN, HUGE, WORTH
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device
from graphpipe.planners.sharing.folds import folded_plans
from graphpipe.planners.sharing.host_changes import rehosted
from graphpipe.plans.estimates import least_step_seconds, task_count
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


def with_shared_devices(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one in which devices host several stages.

    For 2 stages per device, then for 3 and so on up to what the caller allows:

    1. If it is a power of two, cut the operators into this many times as many stages as there are teams of devices, and
       fold them onto the devices (`folded_plans`).
    2. Change the best of these, and the best plan for fewer stages: let devices host further stages, host a stage
       elsewhere, or let two stages have the devices of both (`rehosted`).
    3. Choose the best under the caller's schedule, after the small changes of `Options.scheduled`.

    What is found for fewer stages does not depend on how many are allowed, so more never give a slower plan.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan without shared devices.
        options: the caller's.
    """
    if options.scheduled is None or problem.work > HUGE:
        return plan
    shared = _Shared(best=plan, start=plan, seen=frozenset())
    for most in range(2, options.stages_per_device + 1):
        shared = _with_one_more(problem, shared, replace(options, stages_per_device=most))
    return shared.best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    best: Plan
    """The best plan so far, under its schedule."""
    start: Plan
    """The plan that ranks best, before it got its schedule."""
    seen: frozenset[tuple[Stage, ...]]
    """The stages of all plans that got a schedule."""


def _with_one_more(problem: Problem, before: _Shared, options: Options) -> _Shared:
    seconds, most = options.evaluate(before.best), options.stages_per_device
    folds: list[Plan] = []
    if most.bit_count() == 1:
        folds = folded_plans(problem, options, most, planner=before.best.planner, most=options.effort.folds)
        folds = _close(folds, seconds * FAR, options)
    # A change at most doubles the stages of a device.
    again = [before.start] if most <= 2 * most_stages_per_device(before.start) else []
    candidates = [*folds, *(rehosted(problem, plan, options) for plan in (*again, *folds[:1]))]
    new = [plan for plan in candidates if most_stages_per_device(plan) > 1 and plan.stages not in before.seen]
    shared = _close(new, seconds, options)
    if not shared:
        return before
    worth = _worth_a_schedule(before, shared, options)
    best = options.best([before.best, *_chosen(worth, options)])
    seen = before.seen.union(plan.stages for plan in worth)
    return _Shared(best=best, start=shared[0] if best is not before.best else before.start, seen=seen)


def _worth_a_schedule(before: _Shared, shared: Sequence[Plan], options: Options) -> list[Plan]:
    """Return the plans of few tasks, and the first one if it ranks better than the best one before."""
    known, seconds = before.start.stages in before.seen, options.ranked(shared[0], inf)
    gains = not known or seconds * WORTH < options.ranked(before.start, inf)
    sums = accumulate(map(task_count, shared))
    return [
        plan
        for plan, tasks in zip(shared, sums, strict=True)
        if tasks <= FEW_SHARED_TASKS or (plan is shared[0] and gains)
    ]


def _close(plans: Sequence[Plan], seconds: float, options: Options) -> list[Plan]:
    """Return the plans that rank within a small factor of some seconds, the best first, and not more than are kept."""
    ranked: list[tuple[float, int]] = []
    for least, number in sorted((least_step_seconds(plan), number) for number, plan in enumerate(plans)):
        limit = ranked[options.effort.improved - 1][0] if len(ranked) >= options.effort.improved else GAIN * seconds
        if least < limit and (rank := options.ranked(plans[number], limit)) < limit:
            ranked = sorted([*ranked, (rank, number)])
    return [plans[number] for _, number in ranked[: options.effort.improved]]


def _chosen(plans: Sequence[Plan], options: Options) -> list[Plan]:
    assert options.scheduled is not None
    try:
        return [options.scheduled(plans)] if plans else []
    except Infeasible:  # None fits in memory under the caller's schedule.
        return []
