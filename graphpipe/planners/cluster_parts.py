"""Plans on parts of a cluster: the fastest of a plan for all devices and those for some of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

from graphpipe.cluster import Cluster, Link
from graphpipe.cluster.device import LinkLevel
from graphpipe.cluster.levels import device_groups
from graphpipe.errors import Infeasible
from graphpipe.planners.budget import Pass
from graphpipe.planners.problem.limits import GAIN, KEPT
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers import one_f_one_b

Positions = tuple[int, ...]
"""Of the devices of a part, ascending."""
_ENDLESS = 1e18
"""Bytes per second of a link that takes no time."""


def fastest_on_parts(
    problem: Problem,
    plan: Plan,
    options: Options,
    find: Callable[[Problem, Options], Plan],
    parts: Iterable[tuple[float, Positions]],
) -> Plan:
    """Return the plan under the caller's schedule, or a faster one that uses only the devices of a part.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan for all devices.
        options: the caller's.
        find: the search.
        parts: each with seconds that its devices need at least. A part that needs as long as the best plan so far is
            not searched, and the search of one whose candidates all rank far behind it ends early.
    """
    # A search of unequal devices returns plans under 1F1B. They were compared with plans under a better schedule.
    best = options.under_schedule(plan) if plan.schedule == one_f_one_b.NAME else plan
    seconds = options.evaluate(best)
    for least, part in parts:
        if least >= seconds:
            continue
        cluster = _only(problem.cluster, part)
        try:
            faster = replace(options, most_seconds=seconds, most_ranked=KEPT * seconds)
            found = find(replace(problem, cluster=cluster), faster)
        except Infeasible:  # Too little memory, or every plan is slower.
            continue
        found = _moved(found, problem.cluster, part)
        if (found_seconds := options.evaluate(found)) < seconds:
            best, seconds = found, found_seconds
    return best


def improved_on_own_part(problem: Problem, plan: Plan, options: Options, improve: Pass) -> Plan:
    """Return the plan, or a faster one that a pass finds with only the devices that the plan uses.

    Among all devices, most random changes of a plan for a part lead out of it.
    """
    part = tuple(sorted({*plan.used_devices, *(device for stage in plan.stages for device in stage.offload_to)}))
    if len(part) == len(problem.cluster.devices):
        return plan
    cluster = _only(problem.cluster, part)
    within = [part.index(device) if device in part else -1 for device in range(len(problem.cluster.devices))]
    improved = improve(replace(problem, cluster=cluster), _moved(plan, cluster, within), options)
    return _moved(improved, problem.cluster, part)


def groups_at(cluster: Cluster, level: LinkLevel) -> list[Positions]:
    """Return the devices of each group of a level of links."""
    group_of = device_groups([device.node for device in cluster.devices], level)
    return [tuple(at for at, own in enumerate(group_of) if own == group) for group in dict.fromkeys(group_of)]


def messages_are_short(plan: Plan, options: Options) -> bool:
    """Return whether a plan would hardly be faster with links that take no time."""
    # Both are ranked quickly: a schedule would be searched again for links that take no time.
    ranked = options.ranked(plan, inf)
    return ranked < inf and GAIN * options.ranked(_without_messages(plan), inf) > ranked


def _without_messages(plan: Plan) -> Plan:
    def free(link: Link) -> Link:
        return replace(link, latency_seconds=0.0, bandwidth_bytes_per_second=_ENDLESS)

    return replace(plan, cluster=plan.cluster.with_every_link(free), prediction=None)


def _only(cluster: Cluster, part: Positions) -> Cluster:
    return cluster.only([cluster.devices[device].name for device in part])


def _moved(plan: Plan, cluster: Cluster, positions: Sequence[int]) -> Plan:
    """Return the same plan for another cluster, with the position there of each device here."""
    stages = tuple(
        replace(
            stage,
            devices=tuple(positions[device] for device in stage.devices),
            offload_to=tuple(positions[device] for device in stage.offload_to),
        )
        for stage in plan.stages
    )
    return replace(plan, cluster=cluster, stages=stages, prediction=None)
