"""Iterated local search around the best plan, with changes of stages and of their hosts together."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.improve.exchange_devices import on_first_devices
from graphpipe.planners.improve.hill_climb import hill_climb
from graphpipe.planners.improve.iterated import iterated
from graphpipe.planners.improve.neighbours import Neighbours
from graphpipe.planners.improve.relieved import decides
from graphpipe.planners.problem.limits import FEW_TASKS
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.sharing.host_changes import HostChanges, as_planned, rehosted
from graphpipe.plans.estimates import replica_task_count, task_count
from graphpipe.plans.plan import Plan


def with_random_changes(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one that small changes find from near it.

    Each time, random changes of its stages or of their hosts come first, then small changes of stages, then of hosts.
    A plan that names what stages recompute or offload stays as it is. So does one whose devices host stages in a V.

    Args:
        problem: graph, costs, cluster and batch.
        plan: a sound plan.
        options: the caller's.
    """
    kicks = options.kicks(problem.work)
    if not kicks or options.scheduled is None or options.in_a_v or decides(plan):
        return plan
    spent, effort = _Spent(options.ranked), options.effort
    most = effort.kicked_tasks_for(problem.work, splits_backward=options.splits_backward)
    search, start = _Search(problem, replace(options, ranked=spent)), as_planned(problem, plan)
    affordable = takewhile(lambda _: spent.tasks < most, range(kicks))
    best = iterated(start, options.ranked(start, inf), affordable, search.climbed, search.changes)[1]
    if best is not start:
        with suppress(Infeasible):  # It lacks memory under the caller's schedule.
            plan = options.best([plan, options.scheduled([best])])
    return on_first_devices(plan)


@dataclass(slots=True)
class _Spent:
    """Ranks plans, and adds up their tasks."""

    ranked: Callable[[Plan, float], float]
    tasks: int = 0

    def __call__(self, plan: Plan, limit_seconds: float) -> float:
        self.tasks += FEW_TASKS + (replica_task_count(plan) if plan.shares_devices else task_count(plan))
        return self.ranked(plan, limit_seconds)


@dataclass(frozen=True, slots=True)
class _Search:
    problem: Problem
    options: Options

    def climbed(self, plan: Plan) -> tuple[float, Plan]:
        options = self.options
        plan = hill_climb(
            plan,
            options.ranked,
            options.effort.changed_tasks // task_count(plan),
            sizes=options.sizes(self.problem.batch_size),
            whole_backwards=not options.splits_backward,
            every=True,
        )
        if options.stages_per_device > 1:
            plan = rehosted(self.problem, plan, options)
        return options.ranked(plan, inf), plan

    def changes(self, plan: Plan) -> list[Callable[[], Plan | None]]:
        sizes = tuple(self.options.sizes(self.problem.batch_size))
        near = [partial(attempt, inf) for attempt in Neighbours(self.problem, plan).attempts(sizes, every=True)]
        if self.options.stages_per_device == 1:
            return near
        return near + HostChanges.of_options(self.problem, self.options).of(plan)
