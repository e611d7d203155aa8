"""The schedulers by name: GraphPipe's own, those of installed packages, and those that a program registers."""

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plugins import Registry
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import (
    dualpipe_v,
    forward_only,
    gpipe,
    interleaved,
    kfkb,
    one_f_one_b,
    zb_auto,
    zb_h1,
)
from graphpipe.schedule.verify import verify


def _check_traits(scheduler: Scheduler) -> None:
    if not scheduler.flushes or scheduler.weight_versions != 1:
        raise InvalidInput(
            f"declares flushes={scheduler.flushes} and weight_versions={scheduler.weight_versions}, but every stage "
            "keeps one version of its weights and updates it once per mini-batch, after its last backward",
            where=f"scheduler '{scheduler.name}'",
            remedy="Declare flushes=True and weight_versions=1, and build such a schedule.",
        )


SCHEDULERS = Registry(
    "schedule",
    Scheduler,
    "graphpipe.schedulers",
    own=[
        module.SCHEDULER for module in (one_f_one_b, interleaved, dualpipe_v, gpipe, kfkb, zb_h1, zb_auto, forward_only)
    ],
    check=_check_traits,
)
"""Every scheduler registered so far. Every process needs the same ones: where other processes build schedules, as on
several ranks, let an installed package register yours."""
register_scheduler, all_schedulers = SCHEDULERS.register, SCHEDULERS.all


def find_scheduler(name: str, where: str = "plan, schedule") -> Scheduler:
    """Return the scheduler of this name.

    Args:
        name: as in a plan.
        where: the name was read, for the error.

    Raises:
        InvalidInput: an unknown name; the nearest is given.
    """
    return SCHEDULERS.find(name, where)


def build_schedule(plan: Plan) -> Schedule:
    """Return the schedule that the plan names, verified.

    Raises:
        InvalidInput: an unknown name (the nearest is given), or the plan's in_flight samples do not allow the schedule.
    """
    schedule = build_unverified(plan)
    verify(plan, schedule)
    return schedule


def build_unverified(plan: Plan) -> Schedule:
    """Return the schedule that the plan names, for a caller that verifies it elsewhere.

    Raises:
        InvalidInput: an unknown name (the nearest is given), or in_flight samples that do not hold a burst.
    """
    scheduler = find_scheduler(plan.schedule)
    if scheduler.trains and not plan.trains:
        raise InvalidInput(
            f"schedule '{plan.schedule}' has backwards, but the plan does not train",
            where="plan, schedule",
            remedy="Set the schedule to 'forward-only'.",
        )
    return scheduler.build(plan)
