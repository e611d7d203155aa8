"""Lanes on a CPU that remember who did what: an operation that nothing puts after what it needs is a race.

Happens-before by vector clocks, as race detectors have it. What one lane writes, another may touch only after it has
waited for a later moment of the first; memory of one lane that another uses must be held by that one.
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

from graphpipe.run.device.stream import Lane, Mark


class Race(AssertionError):
    """Two lanes use the same memory, and nothing says which comes first."""


@dataclass
class Memory:
    """One tensor's storage."""

    home: "Watched"
    """Where it was allocated."""
    written: "tuple[Watched, int]"
    read: "dict[Watched, int]" = field(default_factory=dict)
    holders: "set[Watched]" = field(default_factory=set)


class Yard(TorchDispatchMode):
    """All lanes of a test, and the memory that they use; `forgetful` lanes do not wait, or hold nothing."""

    def __init__(self, forgets: str = "") -> None:
        super().__init__()
        self.forgets = forgets
        self.main = Watched("main", self)
        self.inside = self.main
        self.lanes = [self.main]
        self.memory: dict[StorageWeakRef, Memory] = {}
        self.operations = 0

    def new_lane(self, device: torch.device) -> Lane:
        """Stand in for `lane.new_lane`."""
        del device
        self.lanes.append(Watched(f"lane {len(self.lanes)}", self))
        return self.lanes[-1]

    def current_lane(self, device: torch.device) -> Lane:
        """Stand in for `lane.current_lane`."""
        del device
        return self.inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, and note what it reads and writes."""
        del types
        out = func(*args, **(kwargs or {}))
        lane = self.inside
        lane.clock[lane] += 1
        self.operations += 1
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | (kwargs or {})
        writes = {it.name for it in func._schema.arguments if it.alias_info is not None and it.alias_info.is_write}
        known: set[StorageWeakRef] = set()
        for name, value in named.items():
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor):
                    known.add(place := _place(tensor))
                    if not _is_view(func):
                        self._touch(place, lane, f"{func} {list(tensor.shape)}", writes=name in writes)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (place := _place(tensor)) not in known:
                self.memory[place] = Memory(lane, (lane, lane.clock[lane]))
        return out

    def _touch(self, place: StorageWeakRef, lane: "Watched", what: str, *, writes: bool) -> None:
        memory = self.memory.setdefault(place, Memory(self.main, (self.main, 0)))
        before = [memory.written, *(memory.read.items() if writes else ())]
        for other, count in before:
            if lane.clock[other] < count:
                raise Race(f"{what} in {lane.name} does not wait for {other.name}")
        if lane not in (memory.home, self.main) and memory.home is not self.main and lane not in memory.holders:
            raise Race(f"{what} in {lane.name} does not hold memory of {memory.home.name}")
        if writes:
            memory.written, memory.read = (lane, lane.clock[lane]), {}
        else:
            memory.read[lane] = lane.clock[lane]


class Clock(dict["Watched", int]):
    """What a lane knows of every lane: how many of its operations have been done."""

    def __missing__(self, lane: "Watched") -> int:
        return 0

    def join(self, other: "Clock") -> None:
        """Know what another knows."""
        for lane, count in other.items():
            self[lane] = max(self[lane], count)


class Watched(Lane):
    """A lane of a yard."""

    def __init__(self, name: str, yard: Yard) -> None:
        self.name, self.yard = name, yard
        self.clock = Clock()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Operations inside are this lane's."""
        before, self.yard.inside = self.yard.inside, self
        try:
            yield
        finally:
            self.yard.inside = before

    def mark(self) -> Mark:
        """What this lane knows now."""
        found = Clock()
        found.join(self.clock)
        return found

    def wait(self, mark: Mark) -> None:
        """Know what a mark knows, unless it is forgotten."""
        assert isinstance(mark, Clock)
        is_fork, is_join = mark[self.yard.main] == max(mark.values(), default=0), self is self.yard.main
        kind = "join" if is_join else "fork" if is_fork else "between"
        if self.yard.forgets != kind:
            self.clock.join(mark)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Note that this lane uses the tensors, unless it is forgotten."""
        if self.yard.forgets != "hold":
            for tensor in tensors:
                place = _place(tensor)
                self.yard.memory.setdefault(place, Memory(self.yard.main, (self.yard.main, 0))).holders.add(self)


def _is_view(func: Any) -> bool:
    # Its result is the memory of its argument, which it neither reads nor writes.
    return any(it.alias_info is not None and not it.alias_info.is_write for it in func._schema.returns)


def _place(tensor: Tensor) -> StorageWeakRef:
    # While this is kept, no other storage is taken for the same.
    return StorageWeakRef(tensor.untyped_storage())
