"""The buffers of messages: how long they are held on one device, by the rules that the runtime follows.

A receive may begin long before its turn (`schedule.ahead`): then its buffer is there. What is sent is kept until it is
known to have been taken (`schedule.taken`); of an output, the stage keeps as much itself until its backward.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graphpipe.plans import Plan
from graphpipe.schedule import Compute, LoweredSchedule, Receive, Send, Task, Transfer
from graphpipe.schedule.acknowledged_sends import Taken, taken_by
from graphpipe.schedule.early_receives import AHEAD_BYTES, Ahead


class Moment(NamedTuple):
    """Of one device."""

    task: Task | None
    """None: of the whole step."""
    side: Literal["start", "end"]


_BEGINNING = Moment(None, "start")
Changes = list[tuple[Moment, float]]
"""By how many bytes, and when, a device holds more or less."""


@dataclass(slots=True)
class Buffers:
    """Goes through the actions of one device, and notes what its buffers hold."""

    plan: Plan
    device: int
    taken: Taken
    kept: Mapping[int, float]
    """By stage whose backward is split: the share of what was received that stays for the second half."""
    changes: Changes = field(default_factory=Changes)
    _now: Moment = _BEGINNING
    _there: set[tuple[Task, int]] = field(default_factory=set[tuple[Task, int]])
    """The task and edge of every buffer."""
    _messages: dict[Task, list[int]] = field(default_factory=dict[Task, list[int]])
    """Bytes of the messages that have begun and that a task waits for."""
    _sent: dict[Transfer, float] = field(default_factory=dict[Transfer, float])

    @staticmethod
    def of(plan: Plan, lowered: LoweredSchedule, device: int) -> Changes:
        """Return what the buffers of a device hold in a step, on a rank of its own."""
        tasks = [action.task for action in lowered.devices[device] if isinstance(action, Compute)]
        split = {task.stage: plan.costs.kept_for_weight_gradient for task in tasks if task.kind == "W"}
        taken = taken_by(lowered, {number: number for number in range(len(lowered.devices))}, device)
        it = Buffers(plan, device, taken, split)
        it.go_through(lowered)
        return it.changes

    def go_through(self, lowered: LoweredSchedule) -> None:
        """Note all of a step."""
        ahead = Ahead(begin=self._begin, size_of=self._bytes, room=AHEAD_BYTES)
        actions = lowered.devices[self.device]
        coming = [action.transfer for action in actions if isinstance(action, Receive) and self._from_afar(action)]
        began = False
        for action in actions:
            if not began and not isinstance(action, Compute):
                ahead.start(coming)
                began = True
            match action:
                case Compute(task):
                    self._now = Moment(task, "start")
                    for count in self._messages.pop(task, ()):
                        ahead.used(count)
                    for transfer in self.taken.get((self.device, task), ()):
                        self._note(-self._sent.pop(transfer, 0.0))
                    self._now = Moment(task, "end")
                case Receive(transfer) if self._from_afar(action):
                    ahead.reach(transfer)
                case Receive(transfer):
                    self._hold(transfer)
                case Send(transfer) if transfer.direction == "backward" and transfer.target_device != self.device:
                    self._sent[transfer] = self._bytes(transfer)
                    self._note(self._sent[transfer])
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
        # A buffer takes the values of all samples of its task, whatever message comes first.
        task, edge = transfer.target_task, transfer.edge
        if (task, edge) in self._there:
            return
        self._there.add((task, edge))
        stage = self.plan.stages[task.stage]
        count = self.plan.edges[edge].bytes_per_sample * stage.micro_batch / stage.degree
        self._note(count)
        if transfer.direction == "backward":
            self.changes.append((Moment(task, "end"), -count))
        elif task.stage in self.kept:
            kept = self.kept[task.stage]
            self.changes.append((Moment(Task("I", task.stage, task.micro_batch), "end"), -count * (1.0 - kept)))
            self.changes.append((Moment(Task("W", task.stage, task.micro_batch), "end"), -count * kept))
        else:
            self.changes.append((Moment(Task("B", task.stage, task.micro_batch), "end"), -count))

    def _note(self, count: float) -> None:
        if count:
            self.changes.append((self._now, count))

    def _from_afar(self, action: Receive) -> bool:
        return action.transfer.source_device != self.device

    def _bytes(self, transfer: Transfer) -> int:
        return round(self.plan.edges[transfer.edge].bytes_per_sample * len(transfer.samples))
