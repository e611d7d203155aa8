"""Choose a schedule for a plan's stages: a named one, or the one with the shortest step."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from graphpipe.errors import Infeasible, InvalidInput, nearest
from graphpipe.planners.improve.relieved import relieved
from graphpipe.planners.problem.partition import with_in_flight_of
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device
from graphpipe.planners.raise_in_flight import with_room, with_slack
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import spare_bytes
from graphpipe.schedule.list_scheduling.waiting_bytes import has_memory_for_all
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers.registry import all_schedulers, build_schedule, find_scheduler
from graphpipe.units import format_bytes

AUTO = "auto"
AS_PLANNED = "1f1b"
"""Keeps the schedule that the planner gave the plan."""


def schedule_choices() -> tuple[str, ...]:
    """Return what a caller may ask for: `auto`, or the name of a scheduler that does not need bursts."""
    return (AUTO, *(name for name, each in all_schedulers().items() if each.trains and not each.uses_bursts))


def check_choice(name: str) -> None:
    """Check the name of a choice.

    Raises:
        InvalidInput: the name is unknown; the message gives the nearest one.
    """
    choices = schedule_choices()
    if name not in choices:
        raise InvalidInput(f"unknown schedule '{name}'", where="schedule", remedy=nearest(name, list(choices)))


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
    return fitted_under(find_scheduler(choice), plan, evaluate)


def _alternatives(plan: Plan) -> Iterator[Plan]:
    """Yield the plans that `auto` compares with a plan, except those that the plan's scheduler has compared."""
    own = find_scheduler(plan.schedule)
    if not own.uses_spare_memory and most_stages_per_device(plan) == 1:
        yield with_slack(plan)
    for name, scheduler in all_schedulers().items():
        if scheduler.tried_by_auto and name != own.name and name not in own.considers:
            with suppress(Infeasible):
                yield under(scheduler, plan)


def fitted_under(scheduler: Scheduler, plan: Plan, evaluate: Callable[[Plan], float]) -> Plan:
    """Return the plan under a schedule. If its samples in flight lack memory, stages recompute or offload some.

    Args:
        scheduler: of the schedule.
        plan: with the samples in flight that 1F1B needs.
        evaluate: seconds of one step of a plan.

    Raises:
        Infeasible: the samples that the schedule keeps in flight do not fit in memory, whatever the stages recompute.
    """
    try:
        return under(scheduler, plan)
    except Infeasible:
        relieved_plans = relieved(replace(with_in_flight_of(scheduler, plan), schedule=scheduler.name))
        if not relieved_plans:
            raise
        return min(relieved_plans, key=evaluate)


def under(scheduler: Scheduler, plan: Plan) -> Plan:
    """Return the plan under a schedule, with the samples in flight that the scheduler can use.

    Raises:
        Infeasible: the samples that the schedule keeps in flight do not fit in memory.
    """
    if scheduler.in_flight is None:
        roomy = with_room(plan, splits=scheduler.splits_backward) if scheduler.uses_spare_memory else plan
        return _checked(replace(roomy, schedule=scheduler.name), scheduler)
    scheduled = replace(with_in_flight_of(scheduler, plan), schedule=scheduler.name)
    for device, spare in spare_bytes(scheduled).items():
        if spare < 0:
            most = max(stage.in_flight for stage in scheduled.stages)
            raise Infeasible(
                f"schedule '{scheduler.name}' keeps up to {most} samples in flight, and device "
                f"'{plan.cluster.devices[device].name}' is {format_bytes(-spare)} ({-spare:.0f} bytes) short of memory "
                "for them",
                remedy="Choose schedule 1f1b, or more devices.",
            )
    return _checked(scheduled, scheduler)


def _checked(plan: Plan, scheduler: Scheduler) -> Plan:
    # The verifier of a schedule counts what waits between the halves of backwards. To build one takes longer than the
    # search for its plan.
    if scheduler.splits_backward and not has_memory_for_all(plan):
        build_schedule(plan)
    return plan
