"""Greedy list scheduling of a graph of stages with split backwards.

The rules are those of Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 3.1, carried over from a chain
to a graph: what has arrived and what a stage holds decide, not its number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from graphpipe.schedule.board import Board, Seat
from graphpipe.schedule.schedule import Kind
from graphpipe.schedule.stage_work import StageWork

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


def greedy(works: Sequence[StageWork], rule: Rule, limit_seconds: float = inf) -> Board:
    """Return a board that every stage filled by the rule.

    Tasks are missing if a cap is too small to go on, or as soon as a stage cannot end within the limit any more.
    """
    board, agenda = Board(works), _Agenda([inf] * len(works))
    for stage in range(len(works)):
        agenda.wake(stage, 0.0)
    while (wake := agenda.next()) is not None:
        now, stage = wake
        if (free := board.free_at(stage)) > now:
            agenda.wake(stage, free)
            continue
        kind, again = _Choice(board, stage, now, rule).choose()
        if kind is None:
            agenda.wake(stage, again)
            continue
        for message in board.put(stage, kind, now):
            at = board.seats[message.stage].ready_at("F" if kind == "F" else "B")
            agenda.wake(message.stage, max(now, at))
        end = board.free_at(stage)
        if end + board.left[stage] + works[stage].tail_seconds > limit_seconds + _ROUNDING:
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


@dataclass(frozen=True, slots=True)
class _Choice:
    board: Board
    stage: int
    now: float
    rule: Rule

    def choose(self) -> tuple[Kind | None, float]:
        """Return the next task, or None and when to ask again (infinite: when a message arrives)."""
        seat, now, rule = self.board.seats[self.stage], self.now, self.rule
        has_room = seat.held + 1 <= rule.caps[self.stage] + _ROUNDING
        forward, backward = seat.ready_at("F"), seat.ready_at("B")
        must_free = not has_room and forward <= now and seat.weights_left > 0
        if rule.alternate and seat.last == "B" and forward <= now and (has_room or must_free):
            return ("F" if has_room else "W"), now
        if backward <= now:
            return ("I" if seat.work.split else "B"), now
        can_forward = has_room and forward <= now
        if can_forward and backward >= now + rule.forward_patience * seat.work.seconds["F"]:
            return "F", now
        soon = min(backward, forward if has_room else inf)
        if seat.weights_left and (must_free or self._fills(seat, soon)):
            return "W", now
        return None, backward if can_forward else soon

    def _fills(self, seat: Seat, soon: float) -> bool:
        if soon >= self.now + self.rule.weight_patience * seat.work.seconds["W"]:
            return True
        idle = seat.idle + soon - self.now
        return self.rule.balance and idle >= max(other.idle for other in self.board.seats)
