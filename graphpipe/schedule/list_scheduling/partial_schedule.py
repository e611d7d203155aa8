"""A schedule in the making: when each device is free, which messages have arrived, what is in flight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from graphpipe.schedule.list_scheduling.plan_work import PlanWork
from graphpipe.schedule.list_scheduling.stage_work import MessageRoute, StageWork
from graphpipe.schedule.schedule import Kind

Direction = Literal["F", "B"]
"""The direction of a message: outputs go forward, gradients go back."""


@dataclass(slots=True)
class ExpectedMessages:
    """The messages in one direction that the tasks of a stage wait for."""

    missing: list[int]
    """How many messages each task still waits for. One more entry at the end never reaches 0."""
    arrived: list[float]
    """When the latest of the messages sent so far reaches each task."""

    @staticmethod
    def of(waits: Sequence[int]) -> "ExpectedMessages":
        """Return the messages of a stage before any has been sent."""
        return ExpectedMessages([*waits, 1], [0.0] * len(waits))

    def ready_at(self, index: int) -> float:
        """Return when a task has all its messages. Infinite if that is unknown, or there is no such task."""
        return inf if self.missing[index] else self.arrived[index]


@dataclass(slots=True)
class StageProgress:
    """The tasks of one stage so far."""

    work: StageWork
    left: float
    """Seconds of the tasks that are not scheduled yet."""
    inputs: ExpectedMessages
    returns: ExpectedMessages
    kinds: list[Kind] = field(default_factory=list[Kind])
    """The kinds of its tasks, in order."""
    forwards: int = 0
    backwards: int = 0
    """Whole backwards and input halves."""
    weights: int = 0
    """Whole backwards and weight halves."""
    begun: float = inf
    """When its first task starts."""
    ended: float = 0.0
    """When its last task so far ends."""
    last: Direction = "F"
    """The direction of its latest message."""
    idle: float = 0.0
    """Seconds without a task since its first one."""

    @property
    def in_flight(self) -> float:
        """Micro-batches in flight. Between the halves of its backward, one counts as the share that stays in memory."""
        return self.forwards - self.backwards + self.work.kept * self.weights_left

    @property
    def weights_left(self) -> int:
        """How many weight gradients can be done now."""
        return self.backwards - self.weights

    @property
    def forward_at(self) -> float:
        """When the next forward has all its messages. Infinite if that is unknown, or no forward is left."""
        return self.inputs.ready_at(self.forwards)

    @property
    def backward_at(self) -> float:
        """When the next backward has all its messages. Infinite if that is unknown, or no backward is left."""
        return self.returns.ready_at(self.backwards) if self.backwards < self.forwards else inf


@dataclass(slots=True)
class PartialSchedule:
    """The tasks of all stages so far, in the order in which they were added."""

    works: PlanWork
    order: list[int] = field(default_factory=list[int])
    """The stage of each task, as a position in `PlanWork.stages`."""
    progress: list[StageProgress] = field(init=False)
    free: list[float] = field(init=False)
    """When each of `PlanWork.devices` has done its tasks so far."""
    _channels: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        self.free = [0.0] * len(self.works.devices)
        self.progress = [
            StageProgress(
                work,
                work.count * _micro_batch_seconds(work),
                ExpectedMessages.of(work.inputs),
                ExpectedMessages.of(work.returns),
            )
            for work in self.works.stages
        ]

    def free_at(self, work: StageWork) -> float:
        """Return when all devices of a stage are free."""
        places = work.places
        return self.free[places[0]] if len(places) == 1 else max([self.free[place] for place in places])

    def put(self, stage: int, kind: Kind, start: float) -> Sequence[MessageRoute]:
        """Add a stage's next task of this kind, and return where it sends. Its devices must be free at `start`."""
        progress = self.progress[stage]
        work, free = progress.work, self.free_at(progress.work)
        assert start >= free, "two tasks of a device overlap"
        if progress.begun == inf:
            progress.begun = start
        else:
            progress.idle += start - free
        seconds = work.seconds[kind]
        end = start + seconds
        progress.left -= seconds
        for place in work.places:
            self.free[place] = end
        progress.ended = end
        progress.kinds.append(kind)
        self.order.append(stage)
        if kind == "W":
            progress.weights += 1
            return ()
        if kind == "F":
            progress.last = "F"
            index = progress.forwards
            progress.forwards += 1
            routes = work.outputs
        else:
            progress.last = "B"
            index = progress.backwards
            progress.backwards += 1
            progress.weights += kind == "B"
            routes = work.gradients
        self._send(routes, index, end, forward=kind == "F")
        return routes

    def _send(self, routes: Iterable[MessageRoute], index: int, end: float, *, forward: bool) -> None:
        for to, channel, portions in routes:
            progress = self.progress[to]
            messages = progress.inputs if forward else progress.returns
            arrival = max(end, self._channels.get(channel, 0.0))
            for number, seconds in portions[index]:
                arrival += seconds
                messages.missing[number] -= 1
                if arrival > messages.arrived[number]:
                    messages.arrived[number] = arrival
            self._channels[channel] = arrival

    @property
    def complete(self) -> bool:
        """Whether all tasks of every stage are scheduled."""
        return all(progress.weights == progress.work.count for progress in self.progress)

    @property
    def seconds(self) -> float:
        """When all devices have updated the weights of all their stages.

        A stage sums its gradients after its own last task, and a device does one sum after the other. It updates after
        its last sum and its last task.
        """
        summed, updates = [0.0] * len(self.free), [0.0] * len(self.free)
        for each in sorted(self.progress, key=lambda progress: progress.ended):
            work = each.work
            end = max(each.ended, *(summed[place] for place in work.places)) + work.sum_seconds
            for place in work.places:
                summed[place] = end
                updates[place] += work.optimizer_seconds
        return max(max(free, last) + update for free, last, update in zip(self.free, summed, updates, strict=True))

    @property
    def own_seconds(self) -> float:
        """The longest time of any stage from its own first task to its own update."""
        return max(
            self.free_at(each.work) - each.begun + each.work.sum_seconds + each.work.optimizer_seconds
            for each in self.progress
        )


def _micro_batch_seconds(work: StageWork) -> float:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if work.split else ("F", "B")
    return sum(work.seconds[kind] for kind in kinds)
