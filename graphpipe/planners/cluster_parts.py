"""Plans on parts of a cluster: the fastest of a plan for all devices and those for some of them."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.errors import Infeasible
from graphpipe.planners.problem.limits import KEPT
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers import one_f_one_b

Positions = tuple[int, ...]
"""Of the devices of a part, ascending."""


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
        cluster = problem.cluster.only([problem.cluster.devices[device].name for device in part])
        try:
            faster = replace(options, most_seconds=seconds, most_ranked=KEPT * seconds)
            found = find(replace(problem, cluster=cluster), faster)
        except Infeasible:  # Too little memory, or every plan is slower.
            continue
        found = _on_all(found, problem.cluster, part)
        if (found_seconds := options.evaluate(found)) < seconds:
            best, seconds = found, found_seconds
    return best


def _on_all(plan: Plan, cluster: Cluster, part: Positions) -> Plan:
    # The same plan, with positions in the whole cluster.
    stages = tuple(
        replace(
            stage,
            devices=tuple(part[device] for device in stage.devices),
            offload_to=tuple(part[device] for device in stage.offload_to),
        )
        for stage in plan.stages
    )
    return replace(plan, cluster=cluster, stages=stages, prediction=None)
