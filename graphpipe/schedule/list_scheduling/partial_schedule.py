"""A schedule in the making: when each device is free, which messages have arrived, what is in flight."""

from collections import defaultdict
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
    """When its last task so far ends..."""
    free: float = 0.0
    """... and when the last one so far of any stage on its devices does."""
    last: Direction = "F"
    """The direction of its latest message."""
    idle: float = 0.0
    """Seconds without a task since its first one."""
    forward_at: float = inf
    """When the next forward has all its messages. Infinite if that is unknown, or no forward is left."""
    backward_at: float = inf
    """When the next backward has all its messages. Infinite if that is unknown, or no backward is left."""

    def expect_forward(self) -> None:
        """Find when the next forward has all its messages."""
        self.forward_at = inf if self.inputs.missing[self.forwards] else self.inputs.arrived[self.forwards]

    def expect_backward(self) -> None:
        """Find when the next backward has all its messages."""
        at = self.backwards
        waits = at >= self.forwards or self.returns.missing[at]
        self.backward_at = inf if waits else self.returns.arrived[at]


@dataclass(slots=True)
class PartialSchedule:
    """The tasks of all stages so far, in the order in which they were added."""

    works: PlanWork
    order: list[int] = field(default_factory=list[int])
    """The stage of each task, as a position in `PlanWork.stages`."""
    progress: list[StageProgress] = field(init=False)
    _hosted: list[Sequence[int]] = field(init=False)
    """By stage: the stages on its devices, itself included."""
    _channels: dict[int, float] = field(default_factory=lambda: defaultdict[int, float](float))

    def __post_init__(self) -> None:
        works = self.works.stages
        self.progress = [
            StageProgress(
                work,
                work.count * _micro_batch_seconds(work),
                ExpectedMessages.of(work.inputs),
                ExpectedMessages.of(work.returns),
            )
            for work in works
        ]
        for progress in self.progress:
            progress.expect_forward()
        self._hosted = [(stage,) for stage in range(len(works))]
        if sum(len(work.places) for work in works) > len(self.works.devices):
            places = [frozenset(work.places) for work in works]
            self._hosted = [[at for at, other in enumerate(places) if other & own] for own in places]

    def put(self, stage: int, kind: Kind, start: float) -> Sequence[MessageRoute]:
        """Add a stage's next task of this kind, and return where it sends. Its devices must be free at `start`."""
        progress = self.progress[stage]
        assert start >= progress.free, "two tasks of a device overlap"
        if progress.begun == inf:
            progress.begun = start
        else:
            progress.idle += start - progress.free
        work = progress.work
        seconds = work.seconds[kind]
        end = start + seconds
        progress.left -= seconds
        for other in self._hosted[stage]:
            if end > self.progress[other].free:
                self.progress[other].free = end
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
            progress.expect_forward()
            if progress.backwards == index:
                progress.expect_backward()
            routes = work.outputs
        else:
            progress.last = "B"
            index = progress.backwards
            progress.backwards += 1
            progress.weights += kind == "B"
            progress.expect_backward()
            routes = work.gradients
        self._send(routes, index, end, forward=kind == "F")
        return routes

    def _send(self, routes: Iterable[MessageRoute], index: int, end: float, *, forward: bool) -> None:
        for to, channel, portions in routes:
            progress = self.progress[to]
            messages = progress.inputs if forward else progress.returns
            arrival = max(end, self._channels[channel])
            for number, seconds in portions[index]:
                arrival += seconds
                messages.missing[number] -= 1
                if arrival > messages.arrived[number]:
                    messages.arrived[number] = arrival
            self._channels[channel] = arrival
            if forward:
                progress.expect_forward()
            else:
                progress.expect_backward()

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
        summed, updates = ([0.0] * len(self.works.devices) for _ in range(2))
        for each in sorted(self.progress, key=lambda progress: progress.ended):
            work = each.work
            end = max(each.ended, *(summed[place] for place in work.places)) + work.sum_seconds
            for place in work.places:
                summed[place] = end
                updates[place] += work.optimizer_seconds
        return max(last + update for last, update in zip(summed, updates, strict=True))

    @property
    def own_seconds(self) -> float:
        """The longest time of any stage from its own first task to its own update."""
        return max(
            each.free - each.begun + each.work.sum_seconds + each.work.optimizer_seconds for each in self.progress
        )


def _micro_batch_seconds(work: StageWork) -> float:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if work.split else ("F", "B")
    return sum(work.seconds[kind] for kind in kinds)
