"""Choose how many devices share a replica of each stage (tensor parallelism), for any planner."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from graphpipe.cluster import Cluster
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.problem.device_groups import DeviceGroups
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.settings import TensorChoice
from graphpipe.plans import Plan
from graphpipe.plans.stage import Stage
from graphpipe.plans.verify import verify

_MOST_CHANGES = 48
"""Most plans with another number of devices per replica of some stages that are simulated."""


def plan_with_ranks(
    problem: Problem, choice: TensorChoice, find: Callable[[Problem], Plan], seconds: Callable[[Plan], float]
) -> Plan:
    """Return the plan of a planner, with replicas that one device or several compute.

    A number is that of all stages. With `auto`:

    1. Plan as without.
    2. For 2 devices per replica, 4 and so on, let the planner plan a cluster whose devices are groups of so many
       devices of one node (`DeviceGroups`).
    3. Double and halve the number at single stages of the best plan, as long as the step gets shorter.

    So the plan is never slower than without. All plans are compared by their simulated step.

    Args:
        problem: of all devices.
        choice: a number, or `auto`.
        find: plans a problem in which each replica has one device. It raises `Infeasible` if no plan fits.
        seconds: of one step of a plan.

    Raises:
        InvalidInput: no node has so many devices, or an operator cannot be shared by so many.
        Infeasible: no plan fits in memory.
    """
    if choice == 1:
        return find(problem)
    if isinstance(choice, int):
        _check_shareable(problem, choice)
        return _planned(problem, choice, find)
    misses: list[Infeasible] = []
    plans: list[Plan] = []
    for ranks in (1, *shareable(problem.graph, problem.cluster)):
        try:
            plans.append(find(problem) if ranks == 1 else _planned(problem, ranks, find))
        except Infeasible as miss:
            misses.append(miss)
    if not plans:
        raise misses[0]
    if not any(op.shards for op in problem.graph.ops):
        return min(plans, key=seconds)
    return _changed_by_stage(min(plans, key=seconds), seconds)


def shareable(graph: Graph, cluster: Cluster) -> tuple[int, ...]:
    """Return the numbers of devices, 2, 4, 8 and so on, that can share every operator with a layout, ascending.

    A node must have so many devices of a type. If no operator has a layout, there is none.
    """
    most = [op.shards.most for op in graph.ops if op.shards is not None]
    counts: list[int] = []
    ranks = 2
    while most and ranks <= len(cluster.devices) and DeviceGroups.of(cluster, ranks).members:
        if all(limit % ranks == 0 for limit in most):
            counts.append(ranks)
        ranks *= 2
    return tuple(counts)


def _check_shareable(problem: Problem, ranks: int) -> None:
    if not DeviceGroups.of(problem.cluster, ranks).members:
        what = f"is {ranks}, but no node of '{problem.cluster.name}' has {ranks} devices of one type"
        raise InvalidInput(what, where="tensor", remedy="Choose fewer, or auto.")
    for op in problem.graph.ops:
        if op.shards is not None and op.shards.most % ranks:
            what = f"is {ranks}, but operator '{op.name}' can be shared by {op.shards.most} devices or a divisor of it"
            raise InvalidInput(what, where="tensor", remedy="Choose a divisor, or auto.")
    if not any(op.shards for op in problem.graph.ops):
        what = f"is {ranks}, but no operator of '{problem.graph.name}' has a layout, so devices could share no work"
        raise InvalidInput(what, where="tensor", remedy="Capture the model again, or leave tensor out.")


def _planned(problem: Problem, ranks: int, find: Callable[[Problem], Plan]) -> Plan:
    groups = DeviceGroups.of(problem.cluster, ranks)
    return groups.expanded(find(groups.problem(problem)), problem)


def _changed_by_stage(best: Plan, seconds: Callable[[Plan], float]) -> Plan:
    """Return a plan after changes of single stages, or of those that share devices, that each make the step shorter."""
    left, improved = _MOST_CHANGES, True
    while improved and left > 0:
        improved = False
        for team in dict.fromkeys(stage.devices for stage in best.stages):
            for changed in _changes(best, team):
                left -= 1
                if left >= 0 and seconds(changed) < seconds(best):
                    best, improved = changed, True
    return best


def _changes(plan: Plan, team: tuple[int, ...]) -> Iterator[Plan]:
    """Yield the sound plans in which the stages on some devices have half or twice as many per replica."""
    for double in (False, True):
        stages = [_with_ranks(stage, double=double) if stage.devices == team else stage for stage in plan.stages]
        if all(stage is not None for stage in stages) and tuple(stages) != plan.stages:
            changed = replace(plan, stages=tuple(stage for stage in stages if stage is not None), prediction=None)
            with suppress(InvalidInput, Infeasible):
                verify(changed)
                yield changed


def _with_ranks(stage: Stage, *, double: bool) -> Stage | None:
    ranks, rest = (2 * stage.tensor, 0) if double else divmod(stage.tensor, 2)
    if rest or not ranks or len(stage.devices) % ranks:
        return None
    whole = len(stage.devices) == ranks
    return replace(stage, tensor=ranks, state="whole" if whole else stage.state)
