"""Choose the best of several plans of one problem under a schedule: a named one, or the one with the shortest step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.improve.hill_climb import hill_climb
from graphpipe.planners.problem.ascending import Ascending
from graphpipe.planners.problem.in_order_bound import least_1f1b_seconds, least_seconds
from graphpipe.planners.problem.limits import (
    CLOSE,
    FEW_TASKS,
    HUGE,
    MANY_TASKS,
    MORE,
    NEAR,
    NORMAL,
    SEARCHED_TASKS,
    SLOWER,
    SearchEffort,
)
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device
from graphpipe.planners.raise_in_flight import with_room
from graphpipe.planning.choose_schedule import AS_PLANNED, AUTO, fitted_under, under
from graphpipe.planning.remembered_seconds import RememberedSeconds
from graphpipe.plans import Plan
from graphpipe.plans.estimates import least_step_seconds, replica_task_count, task_count
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import interleaved, zb_auto
from graphpipe.schedule.schedulers.registry import find_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCandidate:
    """Chooses the best of several 1F1B plans of one problem under a schedule, after small changes (`hill_climb`)."""

    choice: str
    """The name of a schedule, or `auto`."""
    evaluate: Callable[[Plan], float]
    """Seconds of one step of a plan."""
    micro_batch: int | None = None
    """The only micro-batch size that stages may have; None: any."""
    quick: Callable[[Plan], bool] | None = None
    """Whether `evaluate` is quick for a plan; None: always. Otherwise fewer changes are tried."""
    effort: SearchEffort = NORMAL
    """How much is tried."""
    greedy: RememberedSeconds = field(default_factory=lambda: RememberedSeconds(_greedy_seconds))
    """Seconds of a plan under a greedy zero-bubble schedule."""

    def __call__(self, plans: Sequence[Plan]) -> Plan:
        """Return the best of at least one plan, or a plan near it, under its schedule.

        Raises:
            Infeasible: no plan fits in memory under the schedule.
        """
        if self.choice == AUTO:
            return self._under_the_best(plans)
        if self.choice == zb_auto.NAME:
            return self._searched(plans)[1]
        return self._under_a_rule(plans, self.choice)

    def ranked(self, plan: Plan, limit_seconds: float = inf) -> float:
        """Return about the seconds of a 1F1B plan under the chosen schedule, quickly. Infinite above the limit."""
        if self.choice == zb_auto.NAME or (self.choice == AUTO and most_stages_per_device(plan) == 1):
            return self._ranked_greedily(plan, limit_seconds)
        if self.choice != AUTO:
            return self._ranked_by_rule(plan, self.choice)
        # A stage whose weight halves wait until the end sums up its gradients late. Whole backwards hide the sums of
        # the stages that a device has done behind those of its others.
        greedy = self._ranked_greedily(plan, limit_seconds)
        if least_step_seconds(plan, whole_backwards=True) >= min(greedy, limit_seconds):
            return greedy
        return min(greedy, self._ranked_by_rule(plan, AS_PLANNED))

    def _ranked_greedily(self, plan: Plan, limit_seconds: float) -> float:
        try:
            return self.greedy(plan, limit_seconds)
        except (Infeasible, InvalidInput):
            return inf

    def _ranked_by_rule(self, plan: Plan, choice: str) -> float:
        try:
            fitted = _under_rule(choice, plan)
            quick = _interleaves(choice, plan) and replica_task_count(plan) > MANY_TASKS
            return interleaved.quick_seconds(fitted) if quick else self.evaluate(fitted)
        except (Infeasible, InvalidInput):
            return inf

    def _under_the_best(self, plans: Sequence[Plan]) -> Plan:
        """Search a zero-bubble schedule. Try each plan that could be faster with unsplit backwards too. The plans
        include the best one under 1F1B, after small changes for 1F1B.

        Plans of many tasks whose devices host several stages do not get these changes for 1F1B."""
        if any(most_stages_per_device(plan) == 1 or task_count(plan) <= MANY_TASKS for plan in plans):
            # A plan that already has another schedule may keep so many samples in flight that 1F1B cannot order it.
            with suppress(Infeasible):
                plans = [*plans, self._under_a_rule(plans, AS_PLANNED, refined=1)]
        seconds, best = self._searched(plans)
        for plan in plans:
            if least_step_seconds(plan, whole_backwards=True) < seconds and least_seconds(plan) < seconds:
                seconds, best = min((seconds, best), self._evaluated(plan), key=_seconds)
        return best

    def _searched(self, plans: Sequence[Plan]) -> tuple[float, Plan]:
        """Return the best plan under a zero-bubble schedule, and its step seconds.

        1. Give every plan a zero-bubble schedule by one greedy rule, which is quick. Skip a plan whose lower bound is
           not close to the best plan so far.
        2. Improve the most promising plans by small changes, evaluated by the same greedy rule.
        3. Search a schedule for the best plans of steps 1 and 2. Of plans of many tasks, leave out those that step 2
           improved.
        """
        promises: list[tuple[float, Plan]] = []
        bounded = _bounded(plans)[: self.effort.ranked]
        affordable = _affordable([plan for _, plan in bounded], HUGE)
        for (least, _), plan in zip(bounded, affordable, strict=False):
            close = NEAR if task_count(plan) <= FEW_TASKS else 1.0
            if promises and least >= close * min(promises, key=_seconds)[0]:
                continue
            promises.append((self.greedy(plan), plan))
        promising = [plan for _, plan in sorted(promises, key=_seconds)]
        worth = _worth_improving(promising, self.effort.improved, if_few_tasks=MORE)
        near = [self._improved(plan, self.greedy) for plan in worth]
        left = {
            id(plan)
            for plan, other in zip(worth, near, strict=True)
            if plan is not other and task_count(plan) > MANY_TASKS
        }
        others = [plan for plan in promising[: self.effort.searched] if id(plan) not in left]
        return self._with_searched_schedule(_affordable(_distinct(near, others), SEARCHED_TASKS))

    def _with_searched_schedule(self, plans: Iterable[Plan]) -> tuple[float, Plan]:
        """Return the best of at least one plan under a searched schedule, and its step seconds.

        Unless a plan has few tasks, it is left out if its greedy schedule takes as long as that of an earlier one, or
        much longer than the best searched one.
        """
        timed: list[tuple[float, Plan]] = []
        tried = set[float]()
        for plan in plans:
            greedy = self.greedy(plan)
            hopeless = timed and (greedy in tried or greedy > CLOSE * min(timed, key=_seconds)[0])
            if not hopeless or task_count(plan) <= FEW_TASKS:
                tried |= {greedy} - {inf}
                timed.append(self._evaluated(replace(with_room(plan, splits=True), schedule=zb_auto.NAME)))
        return min(timed, key=_seconds)

    def _under_a_rule(self, plans: Sequence[Plan], choice: str, refined: int | None = None) -> Plan:
        """Evaluate the plans under a schedule that a rule makes, and improve the best by small changes.

        Args:
            plans: at least one.
            choice: name of the schedule.
            refined: most plans to improve; None: as many as are worth it.
        """
        whole = not find_scheduler(choice).splits_backward

        def seconds_of(plan: Plan, limit_seconds: float = inf) -> float:
            if limit_seconds < inf and _least_seconds(choice, plan) >= limit_seconds:
                return inf
            try:
                return self.evaluate(_under_rule(choice, plan))
            except (Infeasible, InvalidInput):  # too little memory, or micro-batches that the rule cannot order
                return inf

        def ranked_of(plan: Plan, limit_seconds: float) -> float:
            return self._ranked_by_rule(plan, choice)

        most = self.effort.improved if refined is None else min(refined, self.effort.improved)
        most = most if any(map(self._trials, plans)) else 1  # If no changes are tried, only the best one is needed.
        ranked = Ascending(seconds_of)
        for least, plan in _bounded(plans, whole_backwards=whole):
            if least < (last := ranked.seconds_at(most - 1)):
                ranked.add(plan, least if last == inf else max(least, _least_seconds(choice, plan)))
        promising = _worth_improving(ranked, most, if_few_tasks=MORE if most > 1 and refined is None else 1)
        near = [
            self._improved(plan, ranked_of if _interleaves(choice, plan) else seconds_of, whole_backwards=whole)
            for plan in promising
        ]
        best = min([*near, promising[0]], key=seconds_of)
        if seconds_of(best) < inf:
            return _under_rule(choice, best)
        return self._fitted([plan for _, plan in _bounded(plans, whole_backwards=whole)[: NORMAL.improved]], choice)

    def _fitted(self, plans: Sequence[Plan], choice: str) -> Plan:
        """Return the best of plans that do not run under a schedule as they are, with what stages recompute or offload.

        They lack memory, or keep samples in flight that the schedule cannot order.

        Raises:
            Infeasible: none of them fits.
        """
        plans_under_choice, refused = list[Plan](), list[Infeasible]()
        for plan in plans:
            try:
                fitted = fitted_under(_scheduler(choice, plan), plan, self.evaluate)
                self.evaluate(fitted)
            except Infeasible as error:
                refused.append(error)
            except InvalidInput as error:  # micro-batches that the rule cannot order
                refused.append(Infeasible(error.what, where=error.where, remedy=error.remedy))
            else:
                plans_under_choice.append(fitted)
        if not plans_under_choice:
            raise refused[0]
        return min(plans_under_choice, key=self.evaluate)

    def _improved(self, plan: Plan, evaluate: Callable[[Plan, float], float], *, whole_backwards: bool = False) -> Plan:
        trials = self.effort.changed_tasks // task_count(plan) if evaluate is self.greedy else self._trials(plan)
        sizes = None if self.micro_batch is None else (self.micro_batch,)
        return hill_climb(plan, evaluate, trials, sizes=sizes, whole_backwards=whole_backwards)

    def _trials(self, plan: Plan) -> int:
        """Return the most changes that are tried to improve a plan under a schedule that a rule makes."""
        slow = self.quick is not None and not self.quick(plan)
        return self.effort.changed_tasks // task_count(plan) // (SLOWER if slow else 1)

    def _evaluated(self, plan: Plan) -> tuple[float, Plan]:
        try:
            return self.evaluate(plan), plan
        except Infeasible:  # What waits between the halves of backwards has too little memory.
            return inf, plan
        except InvalidInput:  # With more samples in flight, the stages of a device may wait for each other forever.
            assert plan.shares_devices, "stages with devices of their own never wait for each other forever"
            return inf, plan


def _least_seconds(choice: str, plan: Plan) -> float:
    """Return a lower bound on the seconds of a plan under a schedule that a rule makes; 0 where none is quick."""
    if choice != AS_PLANNED or _interleaves(choice, plan):
        return 0.0
    return least_1f1b_seconds(plan)


def _under_rule(choice: str, plan: Plan) -> Plan:
    return under(_scheduler(choice, plan), plan)


def _scheduler(choice: str, plan: Plan) -> Scheduler:
    return find_scheduler(interleaved.NAME if _interleaves(choice, plan) else choice)


def _interleaves(choice: str, plan: Plan) -> bool:
    # 1F1B of several stages on a device is interleaved.
    return choice in (AS_PLANNED, interleaved.NAME) and most_stages_per_device(plan) > 1


def _bounded(plans: Sequence[Plan], *, whole_backwards: bool = False) -> list[tuple[float, Plan]]:
    """Return the plans with their lower bounds, the lowest first."""
    return sorted([(least_step_seconds(plan, whole_backwards=whole_backwards), plan) for plan in plans], key=_seconds)


def _greedy_seconds(plan: Plan, limit_seconds: float) -> float:
    return zb_auto.greedy_seconds(with_room(plan, splits=True), limit_seconds)


def _affordable(plans: Sequence[Plan], tasks: int) -> Iterator[Plan]:
    """Yield plans, at least one, until together they have `tasks` tasks."""
    for plan in plans:
        yield plan
        tasks -= task_count(plan)
        if tasks <= 0:
            return


def _distinct(*groups: Iterable[Plan]) -> list[Plan]:
    """Return the plans that differ in more than their samples in flight, the first of each such group."""
    distinct: dict[object, Plan] = {}
    for plan in chain.from_iterable(groups):
        distinct.setdefault(tuple(replace(stage, in_flight=stage.micro_batch) for stage in plan.stages), plan)
    return list(distinct.values())


def _worth_improving(plans: Iterable[Plan], most: int, *, if_few_tasks: int = 1) -> list[Plan]:
    """Return the first few plans that differ in their partition of the operators, more if they have few tasks.

    Args:
        plans: the best one first. They are ranked when they are asked for.
        most: to return.
        if_few_tasks: how many times as many are returned of plans that have few tasks.
    """
    by_partition: dict[frozenset[frozenset[str]], Plan] = {}
    more, tasks = most * if_few_tasks, 0
    for plan in plans if most else ():
        known = len(by_partition)
        by_partition.setdefault(frozenset(frozenset(stage.ops) for stage in plan.stages), plan)
        tasks += task_count(plan) if len(by_partition) > known else 0
        if len(by_partition) == more or (len(by_partition) >= most and tasks > FEW_TASKS * more):
            break
    different = list(by_partition.values())
    return different if tasks <= FEW_TASKS * len(different) else different[:most]


def _seconds(ranked: tuple[float, Plan]) -> float:
    return ranked[0]
