"""Search plans in which devices host several stages, and keep the best if it is faster than the plan without them."""

from collections.abc import Sequence
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device
from graphpipe.planners.sharing.folds import folded_plans
from graphpipe.planners.sharing.host_changes import rehosted
from graphpipe.plans.estimates import task_count
from graphpipe.plans.plan import Plan

_MOST_DEVICES = 128
"""On more, the search would take longer than it is worth."""
_FOLDS = 12
"""Folds that are ranked by a quick evaluation of their step."""
_FAR = 1.5
"""Folds that take this many times as long as the plan without sharing are not worth changing."""
_CLOSE = 1.05
"""Plans that rank within this factor of it are worth a searched schedule."""
_FEW_TASKS = 600
"""Plans of more tasks than this are changed further only if they rank best."""
_KEPT = 3
"""Plans whose stages are changed further and get a searched schedule."""


def with_shared_devices(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one in which devices host several stages.

    1. Cut the operators into more stages than there are devices, and fold them onto the devices (`folded_plans`).
    2. Change the best of these and the plan itself: let devices host further stages, host a stage elsewhere, or let
       two stages have the devices of both (`rehosted`).
    3. Choose the best under the caller's schedule, after the small changes of `Options.scheduled`.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan without shared devices.
        options: the caller's.
    """
    few = len(problem.cluster.devices) <= _MOST_DEVICES
    if options.scheduled is None or options.stages_per_device < 2 or not few:
        return plan
    seconds = options.evaluate(plan)
    folds = _close(folded_plans(problem, options, planner=plan.planner, most=_FOLDS), seconds * _FAR, options)[:_KEPT]
    found = _close([*folds, *(rehosted(problem, each, options) for each in (plan, *folds[:1]))], seconds, options)
    shared = [each for each in found if most_stages_per_device(each) > 1]
    worth = [each for number, each in enumerate(shared[:_KEPT]) if not number or task_count(each) <= _FEW_TASKS]
    return options.best([plan, *_chosen(worth, options)])


def _close(plans: Sequence[Plan], seconds: float, options: Options) -> list[Plan]:
    """Return the plans that rank within a small factor of some seconds, the best first."""
    ranked = [(options.ranked(each, inf), number) for number, each in enumerate(plans)]
    return [plans[number] for rank, number in sorted(ranked) if rank < _CLOSE * seconds]


def _chosen(plans: Sequence[Plan], options: Options) -> list[Plan]:
    assert options.scheduled is not None
    try:
        return [options.scheduled(plans)] if plans else []
    except Infeasible:  # None fits in memory under the caller's schedule.
        return []
