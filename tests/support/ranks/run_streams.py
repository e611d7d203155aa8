"""Emulated streams on a CPU that detect races: operations that are not ordered after what they need.

Happens-before by vector clocks, as in race detectors. Another stream may use what one stream writes only after it has
waited for a later mark of that stream. Memory is allocated as torch does it on a GPU: each stream has a pool, and a
stream allocates freed memory of its pool again at once. So it must have waited by then for all streams that used this
memory, unless these hold it. The emulated device runs behind the host as far as it may: what others hold is free only
at the end of the step.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphpipe.devices.device_kind import Mark, Stream


class Race(AssertionError):
    """Two streams use the same memory, and their order is not defined."""


@dataclass
class Memory:
    """One tensor's storage."""

    home: "RecordedStream"
    """Where it was allocated."""
    written: "tuple[RecordedStream, int]"
    bytes: int = 0
    read: "dict[RecordedStream, int]" = field(default_factory=dict)
    holders: "set[RecordedStream]" = field(default_factory=set)

    @property
    def users(self) -> "set[tuple[RecordedStream, int]]":
        """The streams that used it, and the operation of their last use."""
        return {self.written, *self.read.items()}


class StreamRecorder(TorchDispatchMode):
    """All streams of a test and the memory they use. Streams that are `forgetful` skip their waits or holds."""

    def __init__(self, forgets: str = "") -> None:
        super().__init__()
        self.forgets = forgets
        self.main = RecordedStream("main", self)
        self.inside = self.main
        self.streams = [self.main]
        self.memory: dict[StorageWeakRef, Memory] = {}
        self.freed: dict[RecordedStream, list[Memory]] = {}
        self.operations = 0
        self.bytes = self.peak_bytes = 0
        """Bytes that were allocated while this recorded, and the most of them at a time."""

    def new_stream(self, device: torch.device) -> Stream:
        """Stand in for `DeviceKind.new_stream`."""
        del device
        self.streams.append(RecordedStream(f"stream {len(self.streams)}", self))
        return self.streams[-1]

    def current_stream(self, device: torch.device) -> Stream:
        """Stand in for `DeviceKind.current_stream`."""
        del device
        return self.inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, and record the memory that it reads and writes."""
        del types
        out = func(*args, **(kwargs or {}))
        self._free()
        stream = self.inside
        stream.clock[stream] += 1
        self.operations += 1
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        writes = {it.name for it in func._schema.arguments if it.alias_info is not None and it.alias_info.is_write}
        known: set[StorageWeakRef] = set()
        for name, value in named.items():
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor):
                    known.add(place := _place(tensor))
                    if not _is_view(func):
                        self._touch(place, stream, f"{func} {list(tensor.shape)}", writes=name in writes)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (place := _place(tensor)) not in known:
                self._allocate(place, tensor.untyped_storage().nbytes())
        return out

    def _allocate(self, place: StorageWeakRef, count: int) -> None:
        stream = self.inside
        for memory in self.freed.pop(stream, []):
            for other, use in memory.users:
                if stream.clock[other] < use and other not in memory.holders:
                    raise Race(f"{stream.name} reuses memory, and does not wait for its use in {other.name}")
        self.memory[place] = Memory(stream, (stream, stream.clock[stream]), count)
        self.bytes += count
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _free(self) -> None:
        for place in [place for place in self.memory if place.expired()]:
            memory = self.memory.pop(place)
            if memory.home is not self.main:
                self.freed.setdefault(memory.home, []).append(memory)
            if memory.holders <= {memory.home}:
                self.bytes -= memory.bytes

    def _touch(self, place: StorageWeakRef, stream: "RecordedStream", what: str, *, writes: bool) -> None:
        memory = self.memory.setdefault(place, Memory(self.main, (self.main, 0)))
        before = [memory.written, *(memory.read.items() if writes else ())]
        for other, count in before:
            if stream.clock[other] < count:
                raise Race(f"{what} in {stream.name} does not wait for {other.name}")
        if writes:
            memory.written, memory.read = (stream, stream.clock[stream]), {}
        else:
            memory.read[stream] = stream.clock[stream]


class Clock(dict["RecordedStream", int]):
    """A vector clock: for every stream, how many of its operations are known to be done."""

    def __missing__(self, stream: "RecordedStream") -> int:
        return 0

    def join(self, other: "Clock") -> None:
        """Take the later counts of both clocks."""
        for stream, count in other.items():
            self[stream] = max(self[stream], count)


class RecordedStream(Stream):
    """An emulated stream."""

    def __init__(self, name: str, recorder: StreamRecorder) -> None:
        self.name, self.recorder = name, recorder
        self.clock = Clock()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Record the operations of the block as operations of this stream."""
        before, self.recorder.inside = self.recorder.inside, self
        try:
            yield
        finally:
            self.recorder.inside = before

    def mark(self) -> Mark:
        """Return a copy of this stream's clock."""
        found = Clock()
        found.join(self.clock)
        return found

    def wait(self, mark: Mark) -> None:
        """Take over the clock of a mark, unless this kind of wait is to be forgotten."""
        assert isinstance(mark, Clock)
        is_fork, is_join = mark[self.recorder.main] == max(mark.values(), default=0), self is self.recorder.main
        kind = "join" if is_join else "fork" if is_fork else "between"
        if self.recorder.forgets != kind:
            self.clock.join(mark)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Record that this stream uses the tensors, unless holds are to be forgotten."""
        if self.recorder.forgets != "hold":
            for tensor in tensors:
                place = _place(tensor)
                self.recorder.memory.setdefault(place, Memory(self.recorder.main, (self.recorder.main, 0))).holders.add(
                    self
                )


def _is_view(func: Any) -> bool:
    # A view shares the memory of its argument, and neither reads nor writes it.
    return any(it.alias_info is not None and not it.alias_info.is_write for it in func._schema.returns)


def _place(tensor: Tensor) -> StorageWeakRef:
    # While this reference exists, another storage cannot have the same identity.
    return StorageWeakRef(tensor.untyped_storage())
