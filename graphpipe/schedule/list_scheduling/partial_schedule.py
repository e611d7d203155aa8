"""A schedule in the making: when each device is free, which messages have arrived, what is in flight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from graphpipe.schedule.list_scheduling.plan_work import PlanWork
from graphpipe.schedule.list_scheduling.stage_work import MessageRoute, Portions, StageWork
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

    number: int
    """Position of the stage in `PlanWork.stages`."""
    work: StageWork
    left: float
    """Seconds of the tasks that are not scheduled yet."""
    inputs: ExpectedMessages
    returns: ExpectedMessages
    kinds: list[Kind] = field(default_factory=list[Kind])
    """The kinds of the stage's tasks, in order."""
    forwards: int = 0
    backwards: int = 0
    """Number of whole backwards and input halves."""
    weights: int = 0
    """Number of whole backwards and weight halves."""
    begun: float = inf
    """When the stage's first task starts."""
    ended: float = 0.0
    """When the stage's last task so far ends."""
    free: float = 0.0
    """When the last task so far of any stage on the same devices ends."""
    last: Direction = "F"
    """The direction of the stage's latest message."""
    idle: float = 0.0
    """Seconds that the stage was without a task since its first one."""
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
    _neighbours: list[list[StageProgress]] = field(init=False)
    """The other stages on the devices of each stage."""
    together: list[list[StageProgress]] = field(init=False)
    """The stages on one device of each stage, itself included: on the device with most work."""
    _outputs: list["_Mail"] = field(init=False)
    """What the forwards of each stage send."""
    _gradients: list["_Mail"] = field(init=False)
    """What the backwards of each stage send."""
    _channels: list[float] = field(init=False)
    """When each channel is free again."""

    def __post_init__(self) -> None:
        works = self.works.stages
        self.progress = [
            StageProgress(
                number,
                work,
                work.count * _micro_batch_seconds(work),
                ExpectedMessages.of(work.inputs),
                ExpectedMessages.of(work.returns),
            )
            for number, work in enumerate(works)
        ]
        for progress in self.progress:
            progress.expect_forward()
        self._neighbours = [[] for _ in works]
        self.together = [[own] for own in self.progress]
        if sum(len(work.places) for work in works) > len(self.works.devices):
            places = [frozenset(work.places) for work in works]
            for stage, own in enumerate(places):
                others = [at for at, other in enumerate(places) if at != stage and other & own]
                self._neighbours[stage] = [self.progress[at] for at in others]
            hosted = [
                [own for own, at in zip(self.progress, places, strict=True) if place in at]
                for place in range(len(self.works.devices))
            ]
            self.together = [max((hosted[place] for place in work.places), key=_seconds_left) for work in works]
        self._outputs = [self._mail(work.outputs, forward=True) for work in works]
        self._gradients = [self._mail(work.gradients, forward=False) for work in works]
        routes = (route for work in works for route in (*work.outputs, *work.gradients))
        self._channels = [0.0] * (1 + max((route.channel for route in routes), default=-1))

    def _mail(self, routes: Iterable[MessageRoute], *, forward: bool) -> "_Mail":
        sent_along: list[_Route] = []
        for to, channel, occupied, portions in routes:
            receiver = self.progress[to]
            messages = receiver.inputs if forward else receiver.returns
            sent_along.append((receiver, messages, channel, occupied, portions))
        return _Mail(sent_along, [receiver for receiver, *_ in sent_along])

    def put(self, stage: int, kind: Kind, start: float) -> Sequence[StageProgress]:
        """Add a stage's next task of this kind, and return the stages that it sends to.

        Its devices must be free at `start`.
        """
        progress = self.progress[stage]
        free = progress.free
        assert start >= free, "two tasks of a device overlap"
        if progress.begun == inf:
            progress.begun = start
        else:
            progress.idle += start - free
        seconds = progress.work.seconds[kind]
        end = start + seconds
        progress.left -= seconds
        progress.ended = progress.free = end
        for other in self._neighbours[stage]:
            if end > other.free:
                other.free = end
        progress.kinds.append(kind)
        self.order.append(stage)
        if kind == "W":
            progress.weights += 1
            return ()
        if kind == "F":
            progress.last = "F"
            index = progress.forwards
            progress.forwards = index + 1
            progress.expect_forward()
            if progress.backwards == index:
                progress.expect_backward()
            return self._send(self._outputs[stage], index, end, forward=True)
        progress.last = "B"
        index = progress.backwards
        progress.backwards = index + 1
        if kind == "B":
            progress.weights += 1
        progress.expect_backward()
        return self._send(self._gradients[stage], index, end, forward=False)

    def _send(self, mail: "_Mail", index: int, end: float, *, forward: bool) -> Sequence[StageProgress]:
        channels = self._channels
        for progress, messages, channel, occupied, portions in mail.routes:
            free = channels[channel]
            if end > free:
                free = end
            missing, arrived = messages.missing, messages.arrived
            for number, seconds in portions[index]:
                arrival = free + seconds
                free += seconds * occupied
                missing[number] -= 1
                if arrival > arrived[number]:
                    arrived[number] = arrival
            channels[channel] = free
            if forward:
                progress.expect_forward()
            else:
                progress.expect_backward()
        return mail.receivers

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
        for own in sorted(self.progress, key=lambda progress: progress.ended):
            work = own.work
            end = max(own.ended, *(summed[place] for place in work.places)) + work.sum_seconds
            for place in work.places:
                summed[place] = end
                updates[place] += work.optimizer_seconds
        return max(last + update for last, update in zip(summed, updates, strict=True))

    @property
    def own_seconds(self) -> float:
        """The longest time of any stage from its own first task to its own update."""
        return max(own.free - own.begun + own.work.sum_seconds + own.work.optimizer_seconds for own in self.progress)


_Route = tuple[StageProgress, ExpectedMessages, int, float, Portions]
"""The receiver of the messages along an edge, those it waits for, their channel, how long they occupy it, and the
micro-batches that they are for."""


class _Mail(NamedTuple):
    """Where the tasks of a stage in one direction send their results."""

    routes: list[_Route]
    receivers: list[StageProgress]


def _seconds_left(stages: Sequence[StageProgress]) -> float:
    return sum(progress.left for progress in stages)


def _micro_batch_seconds(work: StageWork) -> float:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if work.split else ("F", "B")
    return sum(work.seconds[kind] for kind in kinds)
