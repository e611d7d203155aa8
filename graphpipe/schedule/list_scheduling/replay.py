"""A given order of tasks, played on a board."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from graphpipe.schedule.list_scheduling.partial_schedule import Board
from graphpipe.schedule.list_scheduling.plan_work import Works
from graphpipe.schedule.schedule import Schedule, Task


def replay(works: Works, schedule: Schedule) -> Board | None:
    """Return the board of a schedule whose tasks start as soon as they can; None if they wait for each other.

    The replicas of a stage go in step: a device does what the one does that stands for it.
    """
    player = _Player(Board(works), [schedule.devices[device] for device in works.devices], [0] * len(works.devices))
    waiting = set(range(len(works.devices)))
    while waiting:
        place = waiting.pop()
        while (touched := player.play(place)) is not None:
            waiting |= touched
    return player.board if player.board.complete else None


@dataclass(frozen=True, slots=True)
class _Player:
    board: Board
    lines: Sequence[Sequence[Task]]
    """The tasks of each place..."""
    at: list[int]
    """... and how many of them are done."""

    def play(self, place: int) -> set[int] | None:
        """Put the next task of a place; return the places that may go on by it, or None if it has to wait."""
        board, task = self.board, self._next(place)
        if task is None:
            return None
        stage = board.works.stands[task.stage]
        seat = board.seats[stage]
        places = seat.work.places
        if len(places) > 1 and any(self._next(other) != task for other in places):
            return None
        free = board.free_at(seat.work)
        ready = free if task.kind == "W" else seat.forward_at if task.kind == "F" else seat.backward_at
        if ready == inf:
            return None
        outlets = board.put(stage, task.kind, max(ready, free))
        for each in places:
            self.at[each] += 1
        return {other for outlet in outlets for other in board.seats[outlet.to].work.places} | {*places} - {place}

    def _next(self, place: int) -> Task | None:
        line, done = self.lines[place], self.at[place]
        return line[done] if done < len(line) else None
