"""Choosing a schedule for a plan's stages: a named one, or the one that makes the step shortest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from graphpipe.errors import Infeasible, InvalidInput, nearest
from graphpipe.planners.improve.hill_climb import refined
from graphpipe.planners.raise_in_flight import with_room, with_slack
from graphpipe.planners.zero_bubble import SPLIT, split_plans
from graphpipe.plans import Plan
from graphpipe.plans.estimates import least_step_seconds, needed_bytes
from graphpipe.schedule.schedulers import zb_auto
from graphpipe.units import format_bytes

AUTO = "auto"
CHOICES = (AUTO, "1f1b", "gpipe", *SPLIT)
"""What a caller may ask for; kFkB comes with micro-batch sizes of its own."""
_TRIED = 16
"""Plans that get a greedy schedule..."""
_TRIED_TASKS = 100_000
"""... and how many tasks these may have: long schedules take long."""
_SEARCHED = 4
"""Plans that a schedule is searched for..."""
_SEARCHED_TASKS = 20_000
"""... and how many tasks they may have."""
_REFINED = 3
"""Plans that small changes are tried on..."""
_REFINED_TASKS = 10_000
"""... until so many tasks have been scheduled for each."""


def check_choice(name: str) -> None:
    """Check the name of a choice.

    Raises:
        InvalidInput: unknown; the nearest name is given.
    """
    if name not in CHOICES:
        raise InvalidInput(f"unknown schedule '{name}'", where="schedule", remedy=nearest(name, list(CHOICES)))


def best_scheduled(plans: Sequence[Plan], evaluate: Callable[[Plan], float]) -> Plan:
    """Return the best of several 1F1B plans of one problem, under the schedule that suits it best.

    1. Every plan gets a zero-bubble schedule by one greedy rule, which is quick; a plan that could not be faster under
       any schedule is left out.
    2. The most promising are improved by small changes (`plan.refine`), judged in the same way.
    3. For the best of 1 and 2 a zero-bubble schedule is searched.
    4. Plans that could be faster with whole backwards are tried so, also with slack.

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
    near = [refined(plan, _greedy_seconds, _REFINED_TASKS // _tasks(plan)) for plan in promising[:_REFINED]]
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
    """As many of the plans as have so many tasks; at least one."""
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
    """Return a plan under the schedule of choice; `auto` takes the one with the shortest step.

    Automatic, the plan's own schedule is kept unless another one is faster: the same with more samples in flight, which
    hides messages, or a split backward. One that was searched for is the best of those already.

    Args:
        plan: a plan with the samples in flight that 1F1B needs.
        choice: one of `CHOICES`.
        evaluate: seconds of one step of a plan.

    Raises:
        Infeasible: GPipe's samples in flight do not fit in memory.
    """
    if choice == AUTO:
        if plan.schedule == zb_auto.NAME:
            return plan
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
