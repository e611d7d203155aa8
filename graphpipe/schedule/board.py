"""The state of a pipeline while its schedule is being made: who is free when, what has arrived, what is held."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from graphpipe.schedule.schedule import Kind, Task
from graphpipe.schedule.stage_work import Message, StageWork

Way = Literal["F", "B"]
"""Forward, or back: what messages there are."""


@dataclass(slots=True)
class Seat:
    """What one stage was given so far."""

    work: StageWork
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
    missing: dict[Way, list[int]] = field(default_factory=dict[Way, list[int]])
    """Messages that each task still waits for."""
    arrived: dict[Way, list[float]] = field(default_factory=dict[Way, list[float]])
    """When the latest of the messages known so far reaches each task."""

    @property
    def held(self) -> float:
        """Micro-batches in flight; between the halves of its backward one counts with the share that is kept."""
        return self.forwards - self.backwards + self.work.kept * self.weights_left

    @property
    def weights_left(self) -> int:
        """How many weight gradients could be done now."""
        return self.backwards - self.weights

    def ready_at(self, way: Way) -> float:
        """Return when the next forward or backward has all it needs; infinite when that is unknown, or it is none."""
        index, end = (self.forwards, self.work.count) if way == "F" else (self.backwards, self.forwards)
        return self.arrived[way][index] if index < end and not self.missing[way][index] else inf

    def take(self, kind: Kind) -> int:
        """Count the next task of a kind as done, and return its micro-batch."""
        match kind:
            case "F":
                self.last, self.forwards = "F", self.forwards + 1
                return self.forwards - 1
            case "W":
                self.weights += 1
                return self.weights - 1
            case _:
                self.last, self.backwards = "B", self.backwards + 1
                self.weights += kind == "B"
                return self.backwards - 1


@dataclass(slots=True)
class Board:
    """All stages, and everything they were given, in the order in which it was put there."""

    works: Sequence[StageWork]
    tasks: list[Task] = field(default_factory=list[Task])
    seats: list[Seat] = field(init=False)
    left: list[float] = field(init=False)
    """Seconds of the tasks that each stage has still to be given."""
    free: dict[int, float] = field(init=False)
    """When each device has done all it was given; of devices that host the same stages, one stands for all."""
    _stands: list[tuple[int, ...]] = field(init=False)
    """The devices of each stage that stand for all of them."""
    _channels: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        self._stands = [_standing(self.works, work.devices) for work in self.works]
        self.free = {device: 0.0 for devices in self._stands for device in devices}
        self.left = [work.count * _micro_batch_seconds(work) for work in self.works]
        self.seats = [Seat(work) for work in self.works]
        for seat in self.seats:
            count = seat.work.count
            seat.missing = {"F": [0] * count, "B": [0] * count}
            seat.arrived = {"F": [0.0] * count, "B": [0.0] * count}
        for work in self.works:
            for message in (message for messages in work.outputs for message in messages):
                self.seats[message.stage].missing["F"][message.micro_batch] += 1
            for message in (message for messages in work.gradients for message in messages):
                self.seats[message.stage].missing["B"][message.micro_batch] += 1

    def free_at(self, stage: int) -> float:
        """Return when all devices of a stage are free."""
        stands = self._stands[stage]
        return self.free[stands[0]] if len(stands) == 1 else max([self.free[device] for device in stands])

    def put(self, stage: int, kind: Kind, start: float) -> Sequence[Message]:
        """Give a stage its next task of this kind, no earlier than its devices are free; return what the task sends."""
        seat, work, free = self.seats[stage], self.works[stage], self.free_at(stage)
        assert start >= free, "two tasks of a device overlap"
        index = seat.take(kind)
        seat.idle += start - free if seat.begun < inf else 0.0
        seat.begun = min(seat.begun, start)
        end = start + work.seconds[kind]
        self.left[stage] -= work.seconds[kind]
        for device in self._stands[stage]:
            self.free[device] = end
        self.tasks.append(Task(kind, stage, index))
        if kind == "W":
            return ()
        way, sent = ("F", work.outputs[index]) if kind == "F" else ("B", work.gradients[index])
        for there, number, seconds, channel in sent:
            arrival = self._channels[channel] = max(end, self._channels.get(channel, 0.0)) + seconds
            seat = self.seats[there]
            seat.missing[way][number] -= 1
            seat.arrived[way][number] = max(arrival, seat.arrived[way][number])
        return sent

    @property
    def seconds(self) -> float:
        """When the last stage has updated its weights."""
        return max(self.free_at(stage) + work.tail_seconds for stage, work in enumerate(self.works))

    @property
    def own_seconds(self) -> float:
        """The longest that any stage takes from its own first task to its own update."""
        return max(self.free_at(stage) - seat.begun + seat.work.tail_seconds for stage, seat in enumerate(self.seats))


def _standing(works: Sequence[StageWork], devices: Sequence[int]) -> tuple[int, ...]:
    hosted = {tuple(device in work.devices for work in works): device for device in reversed(devices)}
    return tuple(sorted(hosted.values()))


def _micro_batch_seconds(work: StageWork) -> float:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if work.split else ("F", "B")
    return sum(work.seconds[kind] for kind in kinds)
