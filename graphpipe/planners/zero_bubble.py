"""A plan made faster by splitting its backwards, within a limit of memory."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan

SPLIT = ("zb-h1", "zb-auto")
"""The schedules that split the backward."""


def with_zero_bubble(plan: Plan, evaluate: Callable[[Plan], float], limit_bytes: float = inf) -> Plan:
    """Return the plan with the zero-bubble schedule that is fastest on its stages; itself if none is faster.

    Args:
        plan: a sound plan.
        evaluate: seconds of one step of a plan under the schedule it names.
        limit_bytes: use no more memory than this of any device (see `with_room`), beyond what the plan uses already;
            infinite: what the devices have.

    Raises:
        InvalidInput: a stage's in_flight samples are too few for the stages after it.
    """
    return min([plan, *split_plans(plan, limit_bytes)], key=evaluate)


def split_plans(plan: Plan, limit_bytes: float = inf) -> list[Plan]:
    """Return the plan under every schedule that splits the backward, with memory up to a limit (see `with_room`)."""
    roomy = with_room(plan, limit_bytes)
    return [replace(roomy, schedule=name) for name in SPLIT]
