"""The streams of one rank: one per stage replica, one per stage edge and direction, and the caller's.

    main     weights ready |                                         | gradients there: reduce, sum up, update
    s0              F0.0 F0.1 ...                        B0.0 ...
    edge 0 ->            copy or receive  ...                          a message waits only for the task that made it,
    s1                                  F1.0 ... B1.0                  not for other tasks of its device

So stages on one GPU run side by side, and so do messages and tasks. A receive begins when it is posted, not after the
tasks that were queued before it.
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

Direction = Literal["forward", "backward"]


class HostStreams(NamedTuple):
    """The streams on which a device copies what it offloads, one for each direction."""

    out: Stream
    back: Stream


_EVERYWHERE = -1


@dataclass(slots=True)
class StageStreams:
    """Each stream is created when it is first used, so only for stages of this rank."""

    device: torch.device
    sharing: dict[int, int]
    """The first of the stages that share a stream, by stage, because their gradients add up in the same tensors. A
    stage that shares none is left out."""
    stages: dict[tuple[int, int], Stream] = field(default_factory=dict[tuple[int, int], Stream])
    """The streams of tasks, by stage and device. Stages that share a stream have it under the first of them and
    `_EVERYWHERE`."""
    edges: dict[tuple[int, Direction], Stream] = field(default_factory=dict[tuple[int, Direction], Stream])
    hosts: dict[int, HostStreams] = field(default_factory=dict[int, HostStreams])
    """The streams of copies to and from the host, by device."""
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
        return StageStreams(device, _united([tied.stages for tied in plan.tied_gradients]))

    def stage(self, stage: int, device: int) -> Stream:
        """Return the stream of a replica."""
        key = (self.sharing[stage], _EVERYWHERE) if stage in self.sharing else (stage, device)
        if key not in self.stages:
            self.stages[key] = self._new()
        return self.stages[key]

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

    @contextmanager
    def updating(self, stage: int, device: int, used: Mapping[int, Collection[Tensor]]) -> Generator[None]:
        """Enter the stream of a replica to update the weights of all replicas of its stage in this process.

        The update waits for the tasks of all of them and for the sum of their gradients, and their next tasks wait for
        the update.

        Args:
            stage: its position.
            device: of the replica.
            used: by device: weights and gradients that the tasks and the update read. Their memory may be freed.
        """
        own, others = self.stage(stage, device), {other: self.stage(stage, other) for other in used}
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

    def join(self, streams: Iterable[Stream]) -> None:
        """Let later operations of the caller wait for these streams."""
        for stream in streams:
            self.main.wait(stream.mark())

    def _new(self) -> Stream:
        stream = kind_of(self.device).new_stream(self.device)
        stream.wait(self.main.mark())
        return stream

    @property
    def _all(self) -> list[Stream]:
        copying = (stream for both in self.hosts.values() for stream in both)
        return [*self.stages.values(), *self.edges.values(), *copying]


def _united(groups: Iterable[Collection[int]]) -> dict[int, int]:
    # Merge groups that have a stage in common.
    first: dict[int, int] = {}
    for group in groups:
        merged = {first.get(stage, stage) for stage in group}
        lowest = min(merged)
        first = {stage: lowest if stands in merged else stands for stage, stands in first.items()}
        first |= dict.fromkeys(group, lowest)
    return first
