"""Plans of one node or site, replicated over all of them.

    two sites of two devices       stage 0   a0, b0
    a0 a1 | b0 b1                  stage 1   a1, b1

No message leaves its site: only gradients cross the slow link, once a step. Other candidates give a stage's replicas
devices that are near each other, so that messages cross it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.errors import Infeasible
from graphpipe.planners.cluster_parts import Positions, groups_at, messages_are_short
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.search.search import candidates
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage


def with_replicated_groups(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one: a pipeline inside each group of devices, replicated over all equal groups.

    It is searched if the plan leaves devices unused, or if it would be faster by `GAIN` with links that take no time.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan so far.
        options: the caller's.
    """
    if len(plan.used_devices) == len(problem.cluster.devices) and messages_are_short(plan, options):
        return plan
    for groups in equal_groups(problem.cluster):
        with suppress(Infeasible):  # No stages fit, or not under the caller's schedule.
            plans, most = _replicated_plans(problem, options, groups), options.evaluate(plan)
            if fast := [each for each in plans if least_step_seconds(each) < most]:
                plan = options.best([plan, options.chosen(fast)])
    return plan


def _replicated_plans(problem: Problem, options: Options, groups: Sequence[Positions]) -> list[Plan]:
    copies, names = len(groups), [problem.cluster.devices[at].name for at in groups[0]]
    if problem.batch_size % copies or (options.micro_batch or 0) % copies:
        return []
    share = replace(problem, cluster=problem.cluster.only(names), batch_size=problem.batch_size // copies)
    size = options.micro_batch and options.micro_batch // copies
    # A lone group would hardly wait for messages, and take few stages: the sums of gradients are not in its estimates.
    alone = replace(options, micro_batch=size, splits_backward=True)
    found = candidates(share, alone, planner="graphpipe", chains=(False, True))
    return [_replicated(plan, problem, groups) for plan in found if len(plan.stages) > 1]


def equal_groups(cluster: Cluster) -> Iterator[Sequence[Positions]]:
    """Yield the groups of devices of each level of links, if they are several of the same types of devices."""
    for level in cluster.every_level:
        groups = groups_at(cluster, level)
        kinds = {tuple(cluster.devices[at].type for at in group) for group in groups}
        if 1 < len(groups) < len(cluster.devices) and len(kinds) == 1:
            yield groups


def _replicated(plan: Plan, problem: Problem, groups: Sequence[Positions]) -> Plan:
    def over_all(stage: Stage) -> Stage:
        return replace(
            stage,
            devices=tuple(group[device] for group in groups for device in stage.devices),
            offload_to=tuple(group[device] for group in groups for device in stage.offload_to),
            micro_batch=stage.micro_batch * len(groups),
            in_flight=stage.in_flight * len(groups),
        )

    stages = tuple(map(over_all, plan.stages))
    return replace(plan, cluster=problem.cluster, batch_size=problem.batch_size, stages=stages)
