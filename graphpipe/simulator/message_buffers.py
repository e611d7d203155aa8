"""The message buffers of one device, and how long they are held, by the same rules as in the runtime.

A receive may begin long before its turn (`schedule.early_receives`), and its buffer is allocated then. A sent gradient
is kept until its receive is acknowledged (`schedule.acknowledged_sends`). A sent output is not counted here, because
the stage keeps it anyway until its backward.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import between_halves
from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule import Compute, LoweredSchedule, Receive, Send, StageTask, Transfer
from graphpipe.schedule.acknowledged_sends import AcknowledgedSends, find_acknowledged_sends
from graphpipe.schedule.early_receives import EARLY_BYTES, EarlyReceives


class Moment(NamedTuple):
    """A point in the step of one device."""

    task: StageTask | None
    """The task that the moment is during; None: the whole step."""
    side: Literal["start", "end"]


_BEGINNING = Moment(None, "start")
Changes = list[tuple[Moment, float]]
"""The changes in bytes that a device holds, with their moments."""


@dataclass(slots=True)
class Buffers:
    """Replays the actions of one device, and records what its buffers hold."""

    plan: Plan
    device: int
    acknowledged: AcknowledgedSends
    kept: Mapping[int, float]
    """Share of received values kept for the second half of the backward, by stage whose backward is split."""
    changes: Changes = field(default_factory=Changes)
    _now: Moment = _BEGINNING
    _there: set[tuple[StageTask, int]] = field(default_factory=set[tuple[StageTask, int]])
    """The task and edge of every buffer."""
    _messages: dict[StageTask, list[int]] = field(default_factory=dict[StageTask, list[int]])
    """Bytes of the messages for each task whose receive has begun."""
    _sent: dict[Transfer, float] = field(default_factory=dict[Transfer, float])
    _held: dict[tuple[int, SampleRange], float] = field(default_factory=dict[tuple[int, SampleRange], float])
    """Bytes of gradients that wait for others, by the edge with which their sum goes, and samples."""

    @staticmethod
    def of(plan: Plan, lowered: LoweredSchedule, device: int) -> Changes:
        """Return the changes of a device's buffers in a step, if each device is a rank."""
        tasks = [action.task for action in lowered.devices[device] if isinstance(action, Compute)]
        halved = {task.stage for task in tasks if task.kind == "W"}
        split = {stage: between_halves(plan.cost_model, plan.stages[stage]).received_share for stage in halved}
        acknowledged = find_acknowledged_sends(
            lowered, {number: number for number in range(len(lowered.devices))}, device
        )
        it = Buffers(plan, device, acknowledged, split)
        it.replay(lowered)
        return it.changes

    def replay(self, lowered: LoweredSchedule) -> None:
        """Record the changes of a step."""
        early = EarlyReceives(begin=self._begin, size_of=self._bytes, room=EARLY_BYTES)
        actions = lowered.devices[self.device]
        coming = [action.transfer for action in actions if isinstance(action, Receive) and self._from_afar(action)]
        began = False
        for action in actions:
            if not began and not isinstance(action, Compute):
                early.start(coming)
                began = True
            match action:
                case Compute(task):
                    self._now = Moment(task, "start")
                    for count in self._messages.pop(task, ()):
                        early.used(count)
                    for transfer in self.acknowledged.get((self.device, task), ()):
                        self._note(-self._sent.pop(transfer, 0.0))
                    self._now = Moment(task, "end")
                case Receive(transfer) if self._from_afar(action):
                    early.reach(transfer)
                case Receive(transfer):
                    self._hold(transfer)
                case Send(transfer) if transfer.direction == "backward" and transfer.target_device != self.device:
                    self._sent[transfer] = self._bytes(transfer)
                    self._note(self._sent[transfer] - self._held.pop((transfer.edge, transfer.samples), 0.0))
                    self._hold_gradients(transfer)
                case _:
                    pass
        self._now = Moment(None, "end")
        self._note(-sum(self._sent.values()))

    def _begin(self, transfer: Transfer) -> int:
        self._hold(transfer)
        count = self._bytes(transfer)
        self._messages.setdefault(transfer.target_task, []).append(count)
        return count

    def _hold(self, transfer: Transfer) -> None:
        # The first message for a task allocates the buffer for all of its samples.
        task, edge = transfer.target_task, transfer.edge
        if (task, edge) in self._there:
            return
        self._there.add((task, edge))
        stage = self.plan.stages[task.stage]
        # An output that comes along another edge is copied into a buffer of its own. A left-out gradient has none.
        backward = transfer.direction == "backward"
        per_sample = self.plan.sent_bytes(edge, transfer.without if backward else (), backward=backward)
        count = per_sample * stage.micro_batch / stage.degree
        self._note(count)
        if backward:
            self.changes.append((Moment(task, "end"), -count))
        elif task.stage in self.kept:
            kept = self.kept[task.stage]
            self.changes.append((Moment(StageTask("I", task.stage, task.micro_batch), "end"), -count * (1.0 - kept)))
            self.changes.append((Moment(StageTask("W", task.stage, task.micro_batch), "end"), -count * kept))
        else:
            self.changes.append((Moment(StageTask("B", task.stage, task.micro_batch), "end"), -count))

    def _hold_gradients(self, transfer: Transfer) -> None:
        if transfer.without:
            listed, sent = (self.plan.sent_bytes(transfer.edge, skip, backward=True) for skip in ((), transfer.without))
            left = (listed - sent) * len(transfer.samples)
            key = transfer.without[0], transfer.samples
            self._held[key] = self._held.get(key, 0.0) + left
            self._note(left)

    def _note(self, count: float) -> None:
        if count:
            self.changes.append((self._now, count))

    def _from_afar(self, action: Receive) -> bool:
        return action.transfer.source_device != self.device

    def _bytes(self, transfer: Transfer) -> int:
        return round(transfer.bytes(self.plan))
