"""Choose a schedule for a plan's stages: a named one, or the one with the shortest step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from graphpipe.errors import Infeasible, InvalidInput, nearest
from graphpipe.planners.improve.hill_climb import hill_climb
from graphpipe.planners.problem.partition import with_in_flight_of
from graphpipe.planners.raise_in_flight import with_room, with_slack
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import spare_bytes
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import zb_auto
from graphpipe.schedule.schedulers.registry import all_schedulers, find_scheduler
from graphpipe.units import format_bytes

AUTO = "auto"
AS_PLANNED = "1f1b"
"""Keeps the schedule that the planner gave the plan."""
_TRIED = 16
"""Most plans that get a greedy schedule."""
_TRIED_TASKS = 100_000
"""Most tasks in their schedules together."""
_SEARCHED = 4
"""Most plans for which a schedule is searched."""
_SEARCHED_TASKS = 20_000
"""Most tasks in the searched schedules together."""
_REFINED = 3
"""Most plans that hill climbing tries to improve."""
_REFINED_TASKS = 10_000
"""Most tasks to schedule while it improves one plan."""


def schedule_choices() -> tuple[str, ...]:
    """Return what a caller may ask for: `auto`, or the name of a scheduler that does not need bursts."""
    return (AUTO, *(name for name, each in all_schedulers().items() if not each.uses_bursts))


def check_choice(name: str) -> None:
    """Check the name of a choice.

    Raises:
        InvalidInput: the name is unknown; the message gives the nearest one.
    """
    choices = schedule_choices()
    if name not in choices:
        raise InvalidInput(f"unknown schedule '{name}'", where="schedule", remedy=nearest(name, list(choices)))


def best_scheduled(plans: Sequence[Plan], evaluate: Callable[[Plan], float]) -> Plan:
    """Return the best of several 1F1B plans of one problem, under its best schedule.

    1. Give every plan a zero-bubble schedule by one greedy rule, which is quick. Skip a plan whose lower bound is not
       better than the best plan so far.
    2. Improve the most promising plans by small changes (`hill_climb`), evaluated by the same greedy rule.
    3. Search a zero-bubble schedule for the best plans of steps 1 and 2.
    4. Try each plan that could be faster with unsplit backwards, with and without slack (`with_slack`).

    Args:
        plans: at least one.
        evaluate: seconds of one step of a plan.
    """
    promises: list[tuple[float, Plan]] = []
    for plan in _affordable(sorted(plans, key=least_step_seconds)[:_TRIED], _TRIED_TASKS):
        if promises and least_step_seconds(plan) >= min(promises, key=_seconds)[0]:
            break
        promises.append((_greedy_seconds(plan), plan))
    promising = [plan for _, plan in sorted(promises, key=_seconds)[:_SEARCHED]]
    near = [hill_climb(plan, _greedy_seconds, _REFINED_TASKS // _tasks(plan)) for plan in promising[:_REFINED]]
    searched = map(_searched, _affordable(_distinct(near, promising), _SEARCHED_TASKS))
    seconds, best = min((_evaluated(plan, evaluate) for plan in searched), key=_seconds)
    for plan in plans:
        least = least_step_seconds(plan, whole_backwards=True)
        if least < seconds:
            seconds, best = min((seconds, best), _evaluated(plan, evaluate), key=_seconds)
        if least < seconds and (slack := with_slack(plan)) != plan:
            seconds, best = min((seconds, best), _evaluated(slack, evaluate), key=_seconds)
    return best


def _greedy_seconds(plan: Plan, limit_seconds: float = inf) -> float:
    return zb_auto.greedy_seconds(with_room(plan), limit_seconds)


def _affordable(plans: Sequence[Plan], tasks: int) -> Iterator[Plan]:
    """Yield plans, at least one, until together they have `tasks` tasks."""
    for plan in plans:
        yield plan
        tasks -= _tasks(plan)
        if tasks <= 0:
            return


def _tasks(plan: Plan) -> int:
    return 3 * sum(map(plan.micro_batches, range(len(plan.stages))))


def _searched(plan: Plan) -> Plan:
    return replace(with_room(plan), schedule=zb_auto.NAME)


def _distinct(*groups: Sequence[Plan]) -> list[Plan]:
    return list({id(plan): plan for group in groups for plan in group}.values())


def _evaluated(plan: Plan, evaluate: Callable[[Plan], float]) -> tuple[float, Plan]:
    return evaluate(plan), plan


def _seconds(ranked: tuple[float, Plan]) -> float:
    return ranked[0]


def scheduled(plan: Plan, choice: str, evaluate: Callable[[Plan], float]) -> Plan:
    """Return a plan under the chosen schedule; `auto` takes the one with the shortest step.

    `auto` keeps the plan's own schedule unless another one is faster. It tries the same schedule with more samples in
    flight, which hides messages, and schedules that split the backward. It does not retry schedules that the plan's
    own scheduler has already compared.

    Args:
        plan: a plan with the samples in flight that 1F1B needs.
        choice: one of `schedule_choices()`.
        evaluate: seconds of one step of a plan.

    Raises:
        Infeasible: the samples that the schedule keeps in flight do not fit in memory.
    """
    if choice == AUTO:
        others = [other for other in _alternatives(plan) if other != plan]
        return min([plan, *others], key=evaluate) if others else plan
    return _under(find_scheduler(choice), plan)


def _alternatives(plan: Plan) -> Iterator[Plan]:
    """Yield the plans that `auto` compares with a plan, except those that the plan's scheduler has compared."""
    own = find_scheduler(plan.schedule)
    if not own.uses_spare_memory:
        yield with_slack(plan)
    for name, scheduler in all_schedulers().items():
        if scheduler.tried_by_auto and name != own.name and name not in own.considers:
            with suppress(Infeasible):
                yield _under(scheduler, plan)


def _under(scheduler: Scheduler, plan: Plan) -> Plan:
    """Return the plan under a schedule, with the samples in flight that the scheduler can use."""
    if scheduler.in_flight is None:
        return replace(with_room(plan) if scheduler.uses_spare_memory else plan, schedule=scheduler.name)
    found = replace(with_in_flight_of(scheduler, plan), schedule=scheduler.name)
    for device, spare in spare_bytes(found).items():
        if spare < 0:
            raise Infeasible(
                f"schedule '{scheduler.name}' keeps up to {max(stage.in_flight for stage in found.stages)} samples in "
                f"flight, and device '{plan.cluster.devices[device].name}' is {format_bytes(-spare)} ({-spare:.0f} "
                "bytes) short of memory for them",
                remedy="Choose schedule 1f1b, or more devices.",
            )
    return found
