"""Greedy list scheduling of a graph of stages with split backwards.

The rules are those of Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 3.1, extended from a chain to a
graph: the messages that have arrived and the micro-batches in flight decide, not the stage's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from graphpipe.schedule.list_scheduling.partial_schedule import PartialSchedule, StageProgress
from graphpipe.schedule.list_scheduling.plan_work import PlanWork
from graphpipe.schedule.schedule import Kind

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a stage chooses its next task."""

    caps: tuple[int, ...]
    """The most micro-batches in flight at each stage, at most its room."""
    alternate: bool = True
    """Whether a forward follows a backward if its input is there, even if a weight gradient must first make room."""
    forward_wait_share: float = 0.0
    """The share of a forward's seconds that it waits for a gradient to arrive."""
    weight_wait_share: float = 0.25
    """The share of a weight gradient's seconds that it waits for a message to arrive."""
    balance: bool = False
    """Whether a weight gradient does not wait if its stage would become the one that has idled most."""


def greedy(works: PlanWork, rule: Rule, limit_seconds: float = inf) -> PartialSchedule:
    """Return the schedule that the rule makes.

    It is incomplete if a cap is too small to continue, or if a device can no longer end within the limit.
    """
    partial = PartialSchedule(works)
    all_progress, limit = partial.progress, limit_seconds + _ROUNDING
    tails = [_tail_seconds(together) for together in partial.together]
    # When each stage is asked next for a task: at equal times the later stage first. An entry of `wakes` whose time is
    # not in `asked` has been replaced by an earlier one.
    asked = [0.0] * len(all_progress)
    wakes = [(0.0, -stage) for stage in reversed(range(len(all_progress)))]
    while wakes:
        now, negative = heappop(wakes)
        stage = -negative
        if now != asked[stage]:
            continue
        progress = all_progress[stage]
        asked[stage] = again = progress.free
        if again > now:
            heappush(wakes, (again, negative))
            continue
        kind, again = _choice(partial, progress, now, rule, rule.caps[stage])
        if kind is not None:
            receivers = partial.put(stage, kind, now)
            again = progress.free
            rest = tails[stage]
            for other in partial.together[stage]:
                rest += other.left
            if again + rest > limit:
                break
            for other in receivers:
                at = other.forward_at if kind == "F" else other.backward_at
                if at < inf:
                    number = other.number
                    at = max(now, at, other.free)
                    if at < asked[number]:
                        asked[number] = at
                        heappush(wakes, (at, -number))
        asked[stage] = again
        if again < inf:
            heappush(wakes, (again, negative))
    return partial


def _tail_seconds(together: Sequence[StageProgress]) -> float:
    """Return the seconds that a device takes at least after the last task of its stages."""
    return min(own.work.sum_seconds for own in together) + sum(own.work.optimizer_seconds for own in together)


def _choice(
    partial: PartialSchedule, progress: StageProgress, now: float, rule: Rule, cap: int
) -> tuple[Kind | None, float]:
    """Return a stage's next task, or None and the time to ask again. If that is infinite, a message will wake it."""
    work, forward, backward = progress.work, progress.forward_at, progress.backward_at
    seconds, weights_left = work.seconds, progress.backwards - progress.weights
    in_flight = progress.forwards - progress.backwards + work.kept * weights_left
    has_room = in_flight + 1 <= cap + _ROUNDING
    must_free = not has_room and forward <= now and bool(weights_left)
    if rule.alternate and progress.last == "B" and forward <= now and (has_room or must_free):
        return ("F" if has_room else "W"), now
    if backward <= now:
        return ("I" if work.split else "B"), now
    can_forward = has_room and forward <= now
    if can_forward and backward >= now + rule.forward_wait_share * seconds["F"]:
        return "F", now
    soon = min(backward, forward) if has_room else backward
    if weights_left and (must_free or soon >= now + rule.weight_wait_share * seconds["W"]):
        return "W", now
    if weights_left and rule.balance and progress.idle + soon - now >= max(other.idle for other in partial.progress):
        return "W", now
    return None, backward if can_forward else soon
