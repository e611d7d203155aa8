"""Plans that leave devices unused, because a number of devices that nothing divides is hard to fill."""

from collections import Counter
from collections.abc import Callable

from graphpipe.cluster import Cluster
from graphpipe.planners.cluster_parts import MOST_WORK, fastest_on_parts
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan

_FEWER = 3
"""Most devices to leave out."""


def with_fewer_devices(
    problem: Problem, plan: Plan, options: Options, find: Callable[[Problem, Options], Plan], *, regular: bool = False
) -> Plan:
    """Return the plan, or a faster one of a search without the last device, the last two, or the last three.

    More devices then seldom give a slower plan. On a power of two of devices, in equal nodes, a search finds plans for
    all of them, and its time is not spent twice. Nor is it for devices of several types: their plans may leave out any
    device of each type (`unequal_intervals`).

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan for all devices.
        options: the caller's.
        find: the search.
        regular: try fewer devices of a power of two in equal nodes too.
    """
    devices = problem.cluster.devices
    if len(problem.graph.ops) * len(devices) > MOST_WORK or (is_regular(problem.cluster) and not regular):
        return plan
    if len(problem.cluster.device_types) > 1 and problem.trains:
        return plan
    fewer = range(len(devices) - 1, max(0, len(devices) - 1 - _FEWER), -1)
    return fastest_on_parts(problem, plan, options, find, [(0.0, (*range(count),)) for count in fewer])


def is_regular(cluster: Cluster) -> bool:
    """Return whether the devices are a power of two in equal nodes."""
    count = len(cluster.devices)
    return count & (count - 1) == 0 and len({*Counter(device.node for device in cluster.devices).values()}) == 1
