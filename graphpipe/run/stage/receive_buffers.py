"""Buffers for the values that a stage replica receives: one per value and task, filled by rows of messages."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graphpipe.devices.device_kind import Mark, Stream
from graphpipe.model.stage_program import ValueSpec
from graphpipe.run.comm.messages import PendingMessage, Reader
from graphpipe.run.device.stage_streams import Direction
from graphpipe.run.stage.edge_values import no_gradient
from graphpipe.schedule import StageTask

NamedTensors = dict[str, Tensor]
"""Tensors by the name of their value."""


class LastUse(NamedTuple):
    """Received values that nothing reads after a task."""

    edge: int
    """Position in `Plan.edges`."""
    direction: Direction
    values: list[Tensor]


@dataclass(slots=True)
class TaskBuffers:
    """What one task waits for: the values of each edge, and the messages that have not arrived."""

    edges: dict[int, NamedTensors] = field(default_factory=dict[int, NamedTensors])
    messages: list[PendingMessage] = field(default_factory=list[PendingMessage])
    marks: list[Mark] = field(default_factory=list[Mark])
    """Points in other streams after which the values from stages of this rank are ready."""
    arriving: dict[tuple[int, str, int], PendingMessage] = field(
        default_factory=dict[tuple[int, str, int], PendingMessage]
    )
    """The messages by edge, value and first sample, if other tasks need copies of them."""
    copied: list[PendingMessage] = field(default_factory=list[PendingMessage])
    """Messages for other tasks, of which this one gets copies."""


@dataclass(slots=True)
class ReceiveBuffers:
    """Buffers of the tasks that have begun to receive. A buffer is made at the first message, and its task takes it."""

    device: torch.device
    by_task: dict[StageTask, TaskBuffers] = field(default_factory=dict[StageTask, TaskBuffers])

    def buffers(
        self, task: StageTask, edge: int, specs: Iterable[ValueSpec], rows: int, *, zero: bool = False
    ) -> NamedTensors:
        """Return the buffers, of `rows` samples each, for values that `task` receives along `edge`.

        Args:
            task: that receives.
            edge: position in `Plan.edges`.
            specs: the values.
            rows: samples of the task.
            zero: begin with no gradients, because some messages may leave the values out.
        """
        known = self.by_task.setdefault(task, TaskBuffers()).edges.setdefault(edge, {})
        wanted: NamedTensors = {}
        for spec in specs:
            if spec.name not in known:
                made = torch.empty((rows, *spec.sample_shape), dtype=spec.dtype, device=self.device)
                known[spec.name] = no_gradient(made) if zero else made
            wanted[spec.name] = known[spec.name]
        return wanted

    def expect(self, task: StageTask, message: PendingMessage) -> None:
        """Record that `task` must wait for this message."""
        self.by_task[task].messages.append(message)

    def lend(self, task: StageTask, key: tuple[int, str, int], message: PendingMessage) -> None:
        """Record that other tasks of the device may need copies of this message for `task`."""
        self.by_task[task].arriving[key] = message
        message.arrived = partial(self.note, task)

    def copy_from(self, task: StageTask, message: PendingMessage, rows: Tensor) -> None:
        """Record that `task` needs a copy in `rows` of a message for another task of its device."""
        self.by_task[task].copied.append(message)
        message.readers.append(Reader(rows, partial(self.note, task)))

    def waiting(self, task: StageTask) -> list[PendingMessage]:
        """Return the messages `task` still has to wait for."""
        buffers = self.by_task.get(task)
        return buffers.messages if buffers else []

    def copied(self, task: StageTask) -> list[PendingMessage]:
        """Return the messages for other tasks of which `task` gets copies."""
        buffers = self.by_task.get(task)
        return buffers.copied if buffers else []

    def note(self, task: StageTask, mark: Mark) -> None:
        """Record that a value for `task` is ready at this point of another stream."""
        self.by_task[task].marks.append(mark)

    def enter(self, task: StageTask, stream: Stream) -> None:
        """Make the stream of `task` wait for values from stages of this rank."""
        buffers = self.by_task.get(task)
        if buffers is not None:
            for mark in buffers.marks:
                stream.wait(mark)

    def last_uses(self, task: StageTask, direction: Direction) -> list[LastUse]:
        """Return what was received for a task that is the last to read it."""
        buffers = self.by_task.get(task)
        edges = buffers.edges if buffers else {}
        return [LastUse(edge, direction, [*values.values()]) for edge, values in edges.items()]

    def take(self, task: StageTask) -> dict[int, NamedTensors]:
        """Remove and return the values received for `task`, by edge in ascending order."""
        buffers = self.by_task.pop(task, None) if self.by_task else None
        return dict(sorted(buffers.edges.items())) if buffers else {}
