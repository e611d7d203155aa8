"""What a stage replica receives: one buffer per value and task, which messages fill by rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphpipe.model.stage_program import ValueSpec
from graphpipe.run.comm.messages import Message
from graphpipe.run.device.stream import Lane, Mark
from graphpipe.schedule import Task

Values = dict[str, Tensor]


@dataclass(slots=True)
class Parcel:
    """All that one task waits for: the values of each edge, and the messages still under way."""

    edges: dict[int, Values] = field(default_factory=dict[int, Values])
    messages: list[Message] = field(default_factory=list[Message])
    marks: list[Mark] = field(default_factory=list[Mark])
    """When what stages of this rank hand over is there."""


@dataclass(slots=True)
class Inbox:
    """Buffers of the tasks that have begun to receive; each is made at the first message and taken by its task."""

    device: torch.device
    parcels: dict[Task, Parcel] = field(default_factory=dict[Task, Parcel])

    def buffers(self, task: Task, edge: int, specs: Iterable[ValueSpec], rows: int) -> Values:
        """Return the buffers, of `rows` samples each, that hold what comes for `task` along `edge`."""
        parcel = self.parcels.setdefault(task, Parcel())
        if edge not in parcel.edges:
            parcel.edges[edge] = {
                spec.name: torch.empty((rows, *spec.sample_shape), dtype=spec.dtype, device=self.device)
                for spec in specs
            }
        return parcel.edges[edge]

    def expect(self, task: Task, message: Message) -> None:
        """Note that `task` must wait for this message."""
        self.parcels[task].messages.append(message)

    def waiting(self, task: Task) -> list[Message]:
        """Return the messages `task` still has to wait for."""
        parcel = self.parcels.get(task)
        return parcel.messages if parcel else []

    def note(self, task: Task, mark: Mark) -> None:
        """Note that something for `task` is there at this moment of another lane."""
        self.parcels[task].marks.append(mark)

    def enter(self, task: Task, lane: Lane) -> None:
        """Let the lane of `task` wait for what stages of this rank hand over, and keep all buffers until it is done."""
        parcel = self.parcels.get(task)
        if parcel is not None:
            for mark in parcel.marks:
                lane.wait(mark)
            for values in parcel.edges.values():
                lane.hold(values.values())

    def take(self, task: Task) -> dict[int, Values]:
        """Return, and forget, what came for `task`, by edge in ascending order."""
        parcel = self.parcels.pop(task, None) if self.parcels else None
        return dict(sorted(parcel.edges.items())) if parcel else {}
