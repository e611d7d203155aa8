"""The state of a pipeline while its schedule is being made: who is free when, what has arrived, what is held."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from graphpipe.schedule.list_scheduling.plan_work import Works
from graphpipe.schedule.list_scheduling.stage_work import Outlet, StageWork
from graphpipe.schedule.schedule import Kind

Way = Literal["F", "B"]
"""Forward, or back: what messages there are."""


@dataclass(slots=True)
class Inbox:
    """The messages that the tasks of a stage wait for, one way."""

    missing: list[int]
    """Messages that each task still waits for; the last entry is of no task."""
    arrived: list[float]
    """When the latest of the messages known so far reaches each task."""

    @staticmethod
    def of(waits: Sequence[int]) -> "Inbox":
        """Return an inbox to which nothing has come."""
        return Inbox([*waits, 1], [0.0] * len(waits))

    def ready_at(self, index: int) -> float:
        """Return when a task has all it needs; infinite when that is unknown, or it is none."""
        return inf if self.missing[index] else self.arrived[index]


@dataclass(slots=True)
class Seat:
    """What one stage was given so far."""

    work: StageWork
    left: float
    """Seconds of the tasks that it has still to be given."""
    inputs: Inbox
    returns: Inbox
    kinds: list[Kind] = field(default_factory=list[Kind])
    """Its tasks."""
    forwards: int = 0
    backwards: int = 0
    """Whole, or the input half."""
    weights: int = 0
    """Whole backwards, or the other half."""
    begun: float = inf
    """When its first task starts."""
    last: Way = "F"
    """Which way its latest message went."""
    idle: float = 0.0
    """Seconds without a task since then."""

    @property
    def held(self) -> float:
        """Micro-batches in flight; between the halves of its backward one counts with the share that is kept."""
        return self.forwards - self.backwards + self.work.kept * (self.backwards - self.weights)

    @property
    def weights_left(self) -> int:
        """How many weight gradients could be done now."""
        return self.backwards - self.weights

    @property
    def forward_at(self) -> float:
        """When the next forward has all it needs; infinite when that is unknown, or there is none."""
        return self.inputs.ready_at(self.forwards)

    @property
    def backward_at(self) -> float:
        """When the next backward has all it needs; infinite when that is unknown, or there is none."""
        return self.returns.ready_at(self.backwards) if self.backwards < self.forwards else inf


@dataclass(slots=True)
class Board:
    """All stages, and everything they were given, in the order in which it was put there."""

    works: Works
    order: list[int] = field(default_factory=list[int])
    """Whose task was put, by position in `Works.each`."""
    seats: list[Seat] = field(init=False)
    free: list[float] = field(init=False)
    """When each of `Works.devices` has done all it was given."""
    _channels: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        self.free = [0.0] * len(self.works.devices)
        self.seats = [
            Seat(work, work.count * _micro_batch_seconds(work), Inbox.of(work.inputs), Inbox.of(work.returns))
            for work in self.works.each
        ]

    def free_at(self, work: StageWork) -> float:
        """Return when all devices of a stage are free."""
        places = work.places
        return self.free[places[0]] if len(places) == 1 else max([self.free[place] for place in places])

    def put(self, stage: int, kind: Kind, start: float) -> Sequence[Outlet]:
        """Give a stage its next task of this kind, no earlier than its devices are free; return where it sends."""
        seat = self.seats[stage]
        work, free = seat.work, self.free_at(seat.work)
        assert start >= free, "two tasks of a device overlap"
        if seat.begun == inf:
            seat.begun = start
        else:
            seat.idle += start - free
        seconds = work.seconds[kind]
        end = start + seconds
        seat.left -= seconds
        for place in work.places:
            self.free[place] = end
        seat.kinds.append(kind)
        self.order.append(stage)
        if kind == "W":
            seat.weights += 1
            return ()
        if kind == "F":
            seat.last = "F"
            index = seat.forwards
            seat.forwards += 1
            outlets = work.outputs
        else:
            seat.last = "B"
            index = seat.backwards
            seat.backwards += 1
            seat.weights += kind == "B"
            outlets = work.gradients
        self._send(outlets, index, end, forward=kind == "F")
        return outlets

    def _send(self, outlets: Iterable[Outlet], index: int, end: float, *, forward: bool) -> None:
        for to, channel, portions in outlets:
            seat = self.seats[to]
            inbox = seat.inputs if forward else seat.returns
            arrival = max(end, self._channels.get(channel, 0.0))
            for number, seconds in portions[index]:
                arrival += seconds
                inbox.missing[number] -= 1
                if arrival > inbox.arrived[number]:
                    inbox.arrived[number] = arrival
            self._channels[channel] = arrival

    @property
    def complete(self) -> bool:
        """Whether every stage was given all its tasks."""
        return all(seat.weights == seat.work.count for seat in self.seats)

    @property
    def seconds(self) -> float:
        """When the last stage has updated its weights."""
        return max(self.free_at(seat.work) + seat.work.tail_seconds for seat in self.seats)

    @property
    def own_seconds(self) -> float:
        """The longest that any stage takes from its own first task to its own update."""
        return max(self.free_at(seat.work) - seat.begun + seat.work.tail_seconds for seat in self.seats)


def _micro_batch_seconds(work: StageWork) -> float:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if work.split else ("F", "B")
    return sum(work.seconds[kind] for kind in kinds)
