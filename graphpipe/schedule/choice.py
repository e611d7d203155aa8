"""Choosing a schedule for a plan's stages: a named one, or the one that makes the step shortest."""

from collections.abc import Callable
from dataclasses import replace

from graphpipe.errors import Infeasible, InvalidInput, nearest
from graphpipe.plan import Plan
from graphpipe.plan.bounds import needed_bytes
from graphpipe.schedule.room import with_room, with_slack
from graphpipe.schedule.zero_bubble import SPLIT, split_plans
from graphpipe.units import format_bytes

AUTO = "auto"
CHOICES = (AUTO, "1f1b", "gpipe", *SPLIT)
"""What a caller may ask for; kFkB comes with micro-batch sizes of its own."""


def check_choice(name: str) -> None:
    """Check the name of a choice.

    Raises:
        InvalidInput: unknown; the nearest name is given.
    """
    if name not in CHOICES:
        raise InvalidInput(f"unknown schedule '{name}'", where="schedule", remedy=nearest(name, list(CHOICES)))


def candidates(plan: Plan, choice: str) -> tuple[Plan, ...]:
    """Return a 1F1B plan under the schedules by which candidates are ranked: only those that are quick to build."""
    return (plan, with_slack(plan), replace(with_room(plan), schedule="zb-h1")) if choice == AUTO else (plan,)


def scheduled(plan: Plan, choice: str, evaluate: Callable[[Plan], float]) -> Plan:
    """Return a plan under the schedule of choice; `auto` takes the one with the shortest step.

    Automatic, the plan's own schedule is kept unless another one is faster: the same with more samples in flight, which
    hides messages, or a split backward.

    Args:
        plan: a plan with the samples in flight that 1F1B needs.
        choice: one of `CHOICES`.
        evaluate: seconds of one step of a plan.

    Raises:
        Infeasible: GPipe's samples in flight do not fit in memory.
    """
    if choice == AUTO:
        others = [with_slack(plan), *split_plans(plan)]
        return min([plan, *(other for other in others if other != plan)], key=evaluate)
    if choice == "gpipe":
        return _gpipe(plan)
    return replace(with_room(plan) if choice in SPLIT else plan, schedule=choice)


def _gpipe(plan: Plan) -> Plan:
    stages = tuple(replace(stage, in_flight=plan.batch_size) for stage in plan.stages)
    found = replace(plan, stages=stages, schedule="gpipe")
    devices = plan.cluster.devices
    for device, needed in needed_bytes(found).items():
        short = needed - plan.cluster.types[devices[device].type].memory_bytes
        if short > 0:
            raise Infeasible(
                f"GPipe keeps the whole mini-batch in flight, and device '{devices[device].name}' is "
                f"{format_bytes(short)} ({short:.0f} bytes) short of memory for it",
                remedy="Choose schedule 1f1b, or more devices.",
            )
    return found
