"""The schedulers by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from graphpipe.errors import InvalidInput, nearest
from graphpipe.plans import Plan
from graphpipe.schedule.schedule import Schedule
from graphpipe.schedule.schedulers import gpipe, kfkb, one_f_one_b, zb_auto, zb_h1
from graphpipe.schedule.verify import verify

SCHEDULERS: Mapping[str, Callable[[Plan], Schedule]] = MappingProxyType(
    {
        "gpipe": gpipe.build,
        "1f1b": one_f_one_b.build,
        "kfkb": kfkb.build,
        "zb-h1": zb_h1.build,
        "zb-auto": zb_auto.build,
    }
)


def build(plan: Plan) -> Schedule:
    """Return the schedule that the plan names, not verified.

    Raises:
        InvalidInput: an unknown name (the nearest is given), or in_flight samples that hold no burst.
    """
    if plan.schedule not in SCHEDULERS:
        raise InvalidInput(
            f"'{plan.schedule}' is no schedule", where="plan, schedule", remedy=nearest(plan.schedule, list(SCHEDULERS))
        )
    return SCHEDULERS[plan.schedule](plan)


def schedule(plan: Plan) -> Schedule:
    """Return the schedule that the plan names, verified.

    Raises:
        InvalidInput: an unknown name (the nearest is given), or the plan's in_flight samples do not allow the schedule.
    """
    found = build(plan)
    verify(plan, found)
    return found
