"""Plans that leave devices unused, because a number of devices that nothing divides is hard to fill."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.errors import Infeasible
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan

_FEWER = 3
"""Most devices to leave out."""
_MOST_WORK = 10_000
"""Operators times devices up to which plans for fewer devices are searched."""
_SHARING = 1.2
"""How many times as long a plan may take before devices share its stages."""


def with_fewer_devices(
    problem: Problem, plan: Plan, options: Options, find: Callable[[Problem, Options], Plan], *, regular: bool = False
) -> Plan:
    """Return the plan, or a faster one of a search without the last device, the last two, or the last three.

    More devices then seldom give a slower plan. On a power of two of devices, in equal nodes, a search finds plans for
    all of them, and its time is not spent twice.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan for all devices.
        options: the caller's.
        find: the search.
        regular: try fewer devices of a power of two in equal nodes too.
    """
    devices = problem.cluster.devices
    if len(problem.graph.ops) * len(devices) > _MOST_WORK or (is_regular(problem.cluster) and not regular):
        return plan
    # A search of unequal devices returns plans under 1F1B. They were compared with plans under a better schedule.
    best = options.under_schedule(plan)
    seconds = options.evaluate(best)
    for count in range(1, min(_FEWER, len(devices) - 1) + 1):
        fewer = replace(problem, cluster=problem.cluster.without({device.name for device in devices[-count:]}))
        slower = 1.0 if options.stages_per_device == 1 else _SHARING
        try:
            smaller_plan = find(fewer, replace(options, most_seconds=slower * seconds))
        except Infeasible:  # Too little memory, or every plan is slower.
            continue
        smaller_plan = replace(smaller_plan, cluster=problem.cluster, prediction=None)
        if (fewer_seconds := options.evaluate(smaller_plan)) < seconds:
            best, seconds = smaller_plan, fewer_seconds
    return best


def is_regular(cluster: Cluster) -> bool:
    """Return whether the devices are a power of two in equal nodes."""
    count = len(cluster.devices)
    return count & (count - 1) == 0 and len({*Counter(device.node for device in cluster.devices).values()}) == 1
