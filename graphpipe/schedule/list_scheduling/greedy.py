"""Greedy list scheduling of a graph of stages with split backwards.

The rules are those of Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 3.1, carried over from a chain
to a graph: what has arrived and what a stage holds decide, not its number.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from graphpipe.schedule.list_scheduling.partial_schedule import Board, Seat
from graphpipe.schedule.list_scheduling.plan_work import Works
from graphpipe.schedule.schedule import Kind

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a stage does next when it has a choice."""

    caps: tuple[int, ...]
    """Micro-batches in flight that each stage uses of its room."""
    alternate: bool = True
    """After a backward comes a forward, if one has arrived, even where a weight gradient must first make room."""
    forward_patience: float = 0.0
    """A forward waits for a gradient known to arrive within this share of the forward's seconds."""
    weight_patience: float = 0.25
    """A weight gradient waits for what is known to arrive within this share of its own seconds..."""
    balance: bool = False
    """... unless the wait would make its stage the one that has idled most."""


def greedy(works: Works, rule: Rule, limit_seconds: float = inf) -> Board:
    """Return a board that every stage filled by the rule.

    Tasks are missing if a cap is too small to go on, or as soon as a stage cannot end within the limit any more.
    """
    board, agenda = Board(works), _Agenda([inf] * len(works.each))
    seats, limit = board.seats, limit_seconds + _ROUNDING
    for stage in range(len(seats)):
        agenda.wake(stage, 0.0)
    while (wake := agenda.next()) is not None:
        now, stage = wake
        seat = seats[stage]
        if (free := board.free_at(seat.work)) > now:
            agenda.wake(stage, free)
            continue
        kind, again = _choice(board, seat, now, rule, rule.caps[stage])
        if kind is None:
            agenda.wake(stage, again)
            continue
        for outlet in board.put(stage, kind, now):
            other = seats[outlet.to]
            at = other.forward_at if kind == "F" else other.backward_at
            agenda.wake(outlet.to, max(now, at, board.free_at(other.work)))
        end = now + seat.work.seconds[kind]
        if end + seat.left + seat.work.tail_seconds > limit:
            break
        agenda.wake(stage, end)
    return board


@dataclass(slots=True)
class _Agenda:
    """When to ask which stage for its next task; at equal times the later stage first: it lets the others go on."""

    at: list[float]
    """The earliest wake of each stage that has not come yet."""
    wakes: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def wake(self, stage: int, at: float) -> None:
        """Ask a stage at this time, or earlier if that is agreed already; never, if infinite."""
        if at < self.at[stage]:
            self.at[stage] = at
            heappush(self.wakes, (at, -stage))

    def next(self) -> tuple[float, int] | None:
        """Take the first wake: time and stage."""
        while self.wakes:
            now, stage = heappop(self.wakes)
            if now == self.at[-stage]:  # Else an earlier wake came instead.
                self.at[-stage] = inf
                return now, -stage
        return None


def _choice(board: Board, seat: Seat, now: float, rule: Rule, cap: int) -> tuple[Kind | None, float]:
    """Return a stage's next task, or None and when to ask again (infinite: when a message arrives)."""
    seconds, forward, backward, weights_left = seat.work.seconds, seat.forward_at, seat.backward_at, seat.weights_left
    has_room = seat.held + 1 <= cap + _ROUNDING
    must_free = not has_room and forward <= now and weights_left > 0
    if rule.alternate and seat.last == "B" and forward <= now and (has_room or must_free):
        return ("F" if has_room else "W"), now
    if backward <= now:
        return ("I" if seat.work.split else "B"), now
    can_forward = has_room and forward <= now
    if can_forward and backward >= now + rule.forward_patience * seconds["F"]:
        return "F", now
    soon = min(backward, forward) if has_room else backward
    if weights_left and (must_free or soon >= now + rule.weight_patience * seconds["W"]):
        return "W", now
    if weights_left and rule.balance and seat.idle + soon - now >= max(other.idle for other in board.seats):
        return "W", now
    return None, backward if can_forward else soon
