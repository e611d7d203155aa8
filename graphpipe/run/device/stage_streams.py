"""The streams of one rank: one per device of the plan, one per stage edge and direction, and the caller's.

    main     weights ready |                                         | gradients there: reduce, sum up, update
    d0              F0.0 F0.1 ...                        B0.0 ...
    edge 0 ->            copy or receive  ...                          a message waits only for the task that made it,
    d1                                  F1.0 ... B1.0                  not for other tasks of its device

Tasks of one device run one at a time, as the schedule says, so what one stage frees the next one uses again. Devices
that share a GPU run side by side, and so do messages and tasks. A receive begins when it is posted, not after the tasks
that were queued before it.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from graphpipe.devices.device_kind import Stream
from graphpipe.devices.registry import kind_of
from graphpipe.plans import Plan
from graphpipe.run.device.lent_memory import EdgeBuffers, LentMemory

Direction = Literal["forward", "backward"]


class HostStreams(NamedTuple):
    """The streams on which a device copies what it offloads, one for each direction."""

    out: Stream
    back: Stream


@dataclass(slots=True)
class StageStreams:
    """Each stream is created when it is first used, so only for devices and edges of this rank."""

    device: torch.device
    sharing: dict[int, int]
    """The first of the devices that share a stream, by device, because gradients of their stages add up in the same
    tensors. A device that shares none is left out."""
    devices: dict[int, Stream] = field(default_factory=dict[int, Stream])
    """The streams of tasks, by device. Devices that share a stream have it under the first of them."""
    edges: dict[tuple[int, Direction], Stream] = field(default_factory=dict[tuple[int, Direction], Stream])
    hosts: dict[int, HostStreams] = field(default_factory=dict[int, HostStreams])
    """The streams of copies to and from the host, by device."""
    lent: dict[Stream, LentMemory] = field(default_factory=dict[Stream, LentMemory])
    """What the tasks of devices keep in this step for messages, by stream."""
    buffers: dict[Stream, EdgeBuffers] = field(default_factory=dict[Stream, EdgeBuffers])
    """What edges keep in this step for tasks, by stream."""
    main: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.main = kind_of(self.device).current_stream(self.device)

    @staticmethod
    def of(device: torch.device, plan: Plan) -> "StageStreams":
        """Return the streams of a rank. Stages that share parameters run the same module if they are in one process.

        Args:
            device: where the rank computes.
            plan: to be run.
        """
        tied = [
            {device for stage in each.stages for device in plan.stages[stage].devices} for each in plan.tied_gradients
        ]
        return StageStreams(device, _united(tied))

    def tasks(self, device: int) -> Stream:
        """Return the stream of a device's tasks."""
        first = self.sharing.get(device, device)
        if first not in self.devices:
            self.devices[first] = self._new()
        return self.devices[first]

    def edge(self, edge: int, direction: Direction) -> Stream:
        """Return the stream of the messages along a stage edge, outputs or gradients."""
        if (edge, direction) not in self.edges:
            self.edges[edge, direction] = self._new()
        return self.edges[edge, direction]

    def host(self, device: int) -> HostStreams:
        """Return the streams between a device and the memory of its node."""
        if device not in self.hosts:
            self.hosts[device] = HostStreams(self._new(), self._new())
        return self.hosts[device]

    def lent_memory(self, stream: Stream) -> LentMemory:
        """Return what the tasks of a stream keep for messages."""
        if stream not in self.lent:
            self.lent[stream] = LentMemory(stream)
        return self.lent[stream]

    def edge_buffers(self, stream: Stream) -> EdgeBuffers:
        """Return what the stream of an edge keeps for tasks."""
        if stream not in self.buffers:
            self.buffers[stream] = EdgeBuffers(stream)
        return self.buffers[stream]

    @contextmanager
    def forked(self) -> Generator[None]:
        """Let all streams wait for earlier operations, and later operations wait for all streams, even on an error."""
        self.main = kind_of(self.device).current_stream(self.device)
        before = self.main.mark()
        for stream in self._all:
            stream.wait(before)
        try:
            yield
        finally:
            for stream in self._all:
                self.main.wait(stream.mark())
            self.lent.clear()
            self.buffers.clear()

    @contextmanager
    def updating(self, device: int, used: Mapping[int, Collection[Tensor]]) -> Generator[None]:
        """Enter the stream of a device to update the weights of all replicas of its stage in this process.

        The update waits for the tasks of all of them and for the sum of their gradients, and their next tasks wait for
        the update.

        Args:
            device: of the replica.
            used: by device: weights and gradients that the tasks and the update read. Their memory may be freed.
        """
        own, others = self.tasks(device), {other: self.tasks(other) for other in used}
        own.wait(self.main.mark())
        for other, stream in others.items():
            own.wait(stream.mark())
            own.hold(used[other])
            stream.hold(used[other])
        with own.entered():
            yield
        done = own.mark()
        for stream in others.values():
            if stream is not own:
                stream.wait(done)

    def join(self, used: Mapping[int, Collection[Tensor]]) -> None:
        """Let later operations of the caller wait for devices.

        Args:
            used: by device: tensors of its tasks that the caller reads. Their memory may be freed.
        """
        for device, tensors in used.items():
            self.main.wait(self.tasks(device).mark())
            self.main.hold(tensors)

    def _new(self) -> Stream:
        stream = kind_of(self.device).new_stream(self.device)
        stream.wait(self.main.mark())
        return stream

    @property
    def _all(self) -> list[Stream]:
        copying = (stream for both in self.hosts.values() for stream in both)
        return [*self.devices.values(), *self.edges.values(), *copying]


def _united(groups: Iterable[Collection[int]]) -> dict[int, int]:
    # Merge groups that have a device in common.
    first: dict[int, int] = {}
    for group in groups:
        merged = {first.get(device, device) for device in group}
        lowest = min(merged)
        first = {device: lowest if stands in merged else stands for device, stands in first.items()}
        first |= dict.fromkeys(group, lowest)
    return first
