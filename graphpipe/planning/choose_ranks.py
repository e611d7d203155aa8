"""Choose how many devices share a replica of each stage (tensor parallelism), for any planner."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from graphpipe.cluster import Cluster
from graphpipe.costs.ranks.degrees import operators_of
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.problem.device_groups import DeviceGroups
from graphpipe.planners.problem.fitted_layouts import fitted_layouts
from graphpipe.planners.problem.limits import HUGE
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.settings import TensorChoice
from graphpipe.plans import Plan
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.stage import Stage
from graphpipe.plans.verify import verify


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

    An operator that cannot be shared by so many devices runs whole on each, and the graph of the plan has no layout of
    it (`fitted_layouts`).

    Args:
        problem: of all devices.
        choice: a number, or `auto`.
        find: plans a problem in which each replica has one device. It raises `Infeasible` if no plan fits.
        seconds: of one step of a plan.

    Raises:
        InvalidInput: no node has so many devices, or no operator can be shared by so many.
        Infeasible: no plan fits in memory.
    """
    if choice == 1:
        return find(problem)
    choosing = _Choosing(problem, find, seconds)
    if isinstance(choice, int):
        _check_shareable(problem, choice)
        return choosing.planned(choice)[1]
    misses: list[Infeasible] = []
    plans: list[tuple[float, Plan]] = []
    for ranks in (1, *shareable(problem.graph, problem.cluster)):
        try:
            plans.append(choosing.planned(ranks))
        except Infeasible as miss:
            misses.append(miss)
    if not plans:
        raise misses[0]
    best = min(plans, key=lambda timed: timed[0])[1]
    if best.shares_replicas and not plans[0][1].shares_replicas:
        best = min(plans[0][1], best, key=seconds)
    return choosing.changed_by_stage(best) if any(op.shards for op in problem.graph.ops) else best


def shareable(graph: Graph, cluster: Cluster) -> tuple[int, ...]:
    """Return the numbers of devices, 2, 4, 8 and so on, that can share an operator, ascending.

    A node must have so many devices of a type. If no operator has a layout, there is none.
    """
    counts: list[int] = []
    ranks = 2
    while ranks <= len(cluster.devices) and DeviceGroups.of(cluster, ranks).members:
        if operators_of(graph, ranks):
            counts.append(ranks)
        ranks *= 2
    return tuple(counts)


def _check_shareable(problem: Problem, ranks: int) -> None:
    if not DeviceGroups.of(problem.cluster, ranks).members:
        what = f"is {ranks}, but no node of '{problem.cluster.name}' has {ranks} devices of one type"
        raise InvalidInput(what, where="tensor", remedy="Choose fewer, or auto.")
    most = {op.shards.most for op in problem.graph.ops if op.shards is not None}
    if not most:
        what = f"is {ranks}, but no operator of '{problem.graph.name}' has a layout, so devices could share no work"
        raise InvalidInput(what, where="tensor", remedy="Find layouts with gp.with_shards, or leave tensor out.")
    if all(limit % ranks for limit in most):
        listed = ", ".join(map(str, sorted(most)))
        what = f"is {ranks}, but operators can be shared by {listed} devices or divisors of these"
        raise InvalidInput(what, where="tensor", remedy="Choose a divisor, or auto.")


@dataclass(frozen=True, slots=True)
class _Choosing:
    """A choice for one problem, whose graph has every layout."""

    problem: Problem
    find: Callable[[Problem], Plan]
    seconds: Callable[[Plan], float]
    _graphs: dict[frozenset[str], Graph] = field(default_factory=dict[frozenset[str], Graph])
    """Graphs without the layouts of some operators."""

    def planned(self, ranks: int) -> tuple[float, Plan]:
        """Return the plan with so many devices per replica of every stage, and its step seconds.

        With groups as devices, a step is simulated much faster. It is as long as that of the devices, except where the
        links between pairs of devices of two groups differ.
        """
        if ranks == 1:
            best = self.find(self.problem)
            return self.seconds(best), best
        groups = DeviceGroups.of(self.problem.cluster, ranks)
        fitted = replace(self.problem, graph=self._fitted(dict.fromkeys(self.problem.graph.index, ranks)))
        best = self.find(groups.problem(fitted))
        return self.seconds(best), groups.expanded(best, fitted)

    def changed_by_stage(self, best: Plan) -> Plan:
        """Return a plan after changes of single stages, or of those that share devices, that make the step shorter."""
        left, improved = HUGE, True
        while improved and left > 0:
            improved = False
            for team in dict.fromkeys(stage.devices for stage in best.stages):
                for changed in self._changes(best, team):
                    if left <= 0 or least_step_seconds(changed) >= self.seconds(best):
                        continue
                    left -= sum(3 * changed.micro_batches(at) * len(it.devices) for at, it in enumerate(changed.stages))
                    if self.seconds(changed) < self.seconds(best):
                        best, improved = changed, True
        return best

    def _changes(self, plan: Plan, team: tuple[int, ...]) -> Iterator[Plan]:
        """Yield the sound plans in which the stages on some devices have half or twice as many per replica."""
        for double in (False, True):
            stages = [_with_ranks(stage, double=double) if stage.devices == team else stage for stage in plan.stages]
            changed = tuple(stage for stage in stages if stage is not None)
            if len(changed) == len(stages):
                graph = self._fitted({op: stage.tensor for stage in changed for op in stage.ops})
                with suppress(InvalidInput, Infeasible):
                    verify(found := replace(plan, stages=changed, graph=graph, prediction=None))
                    yield found

    def _fitted(self, ranks: dict[str, int]) -> Graph:
        # Costs of one graph are found once.
        fitted = fitted_layouts(self.problem.graph, ranks)
        return self._graphs.setdefault(frozenset(op.name for op in fitted.ops if op.shards is None), fitted)


def _with_ranks(stage: Stage, *, double: bool) -> Stage | None:
    ranks, rest = (2 * stage.tensor, 0) if double else divmod(stage.tensor, 2)
    if rest or not ranks or len(stage.devices) % ranks:
        return None
    whole = len(stage.devices) == ranks
    return replace(stage, tensor=ranks, state="whole" if whole else stage.state)
