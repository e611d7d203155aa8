"""The schedulers by name: GraphPipe's own, those of installed packages, and those that a program registers."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
from graphpipe.plans import Plan
from graphpipe.plugins import load_plugins
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.scheduler import Scheduler
from graphpipe.schedule.schedulers import forward_only, gpipe, interleaved, kfkb, one_f_one_b, zb_auto, zb_h1
from graphpipe.schedule.verify import verify

ENTRY_POINTS = "graphpipe.schedulers"
"""The entry points by which an installed package registers a `Scheduler`, in every process and on the command line."""

_OWN = (one_f_one_b, interleaved, gpipe, kfkb, zb_h1, zb_auto, forward_only)
_BY_NAME = {module.SCHEDULER.name: module.SCHEDULER for module in _OWN}
SCHEDULERS: Mapping[str, Scheduler] = MappingProxyType(_BY_NAME)
"""Every scheduler registered so far."""


def register_scheduler(scheduler: Scheduler) -> None:
    """Register a scheduler, so that it can be chosen by its name.

    Every process needs it. Where other processes than this one build schedules (the command line, training on several
    ranks), let an installed package register it by an entry point:

        [project.entry-points."graphpipe.schedulers"]
        reverse = "my_package.reverse:SCHEDULER"

    Raises:
        InvalidInput: another scheduler has this name, or the scheduler does not flush or keeps several versions of
            the weights.
    """
    where = f"scheduler '{scheduler.name}'"
    if _BY_NAME.get(scheduler.name, scheduler) != scheduler:
        raise InvalidInput("another scheduler has this name", where=where, remedy="Choose another name.")
    if not scheduler.flushes or scheduler.weight_versions != 1:
        raise InvalidInput(
            f"declares flushes={scheduler.flushes} and weight_versions={scheduler.weight_versions}, but every stage "
            "keeps one version of its weights and updates it once per mini-batch, after its last backward",
            where=where,
            remedy="Declare flushes=True and weight_versions=1, and build such a schedule.",
        )
    _BY_NAME[scheduler.name] = scheduler


def all_schedulers() -> Mapping[str, Scheduler]:
    """Return `SCHEDULERS`, with those of installed packages.

    Raises:
        InvalidInput: an installed package's scheduler cannot be imported or registered.
    """
    _register_installed()
    return SCHEDULERS


def find_scheduler(name: str, where: str = "plan, schedule") -> Scheduler:
    """Return the scheduler of this name.

    Args:
        name: as in a plan.
        where: the name was read, for the error.

    Raises:
        InvalidInput: an unknown name; the nearest is given.
    """
    if name not in SCHEDULERS:
        _register_installed()  # Only now, because reading the entry points takes milliseconds.
    if name not in SCHEDULERS:
        raise InvalidInput(f"unknown schedule '{name}'", where=where, remedy=nearest(name, list(SCHEDULERS)))
    return SCHEDULERS[name]


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


@cache
def _register_installed() -> None:
    for _, scheduler in load_plugins(ENTRY_POINTS, Scheduler):
        register_scheduler(scheduler)
