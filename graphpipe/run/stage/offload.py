"""Offloading: what some operators of a stage save is elsewhere between forward and backward.

    forward   F: compute, and note what the offloaded operators save
    offload   copy it to the memory of the node, or send it to a neighbour, and free it
    fetch     copy it back, while the task before the backward runs
    backward  B: reads it

What leaves are whole storages that an offloaded operator made and that only offloaded operators save. Outputs of the
stage, what it received, weights, and what a recomputed region keeps stay, because they would not be freed.
On a GPU the copies go through pinned memory on two streams of their own. On a CPU they are plain copies. To a neighbour
they are messages (`comm.offload_messages`), and in the same rank copies on the device.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from graphpipe.devices.device_kind import Mark, Stream
from graphpipe.devices.registry import kind_of
from graphpipe.errors import OutOfMemory
from graphpipe.model.saved_tensors import SavedTensor
from graphpipe.run.comm.messages import PendingMessage
from graphpipe.run.comm.offload_messages import OffloadMessages, ReplicaKey
from graphpipe.run.device.stage_streams import HostStreams
from graphpipe.run.stage.tensor_tree import leaves
from graphpipe.units import format_bytes


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The device to which a replica offloads, in place of the memory of the node."""

    rank: int
    messages: OffloadMessages | None
    """The messages to its rank; None if that is this rank, whose devices share one memory."""
    replica: ReplicaKey
    """The stage and device that offloads."""


@dataclass(slots=True, eq=False)
class CopyOut:
    """A copy that was started."""

    end: Mark
    sources: list[Tensor]
    """What it reads, until later tasks come after its end."""


@dataclass(slots=True)
class Offloading:
    """What one replica of a stage offloads, micro-batch by micro-batch."""

    stage_name: str
    device: torch.device
    copying: HostStreams
    computing: Stream
    neighbour: Neighbour | None = None
    """Where it goes; None is the memory of the node."""
    current: "OffloadedTensors | None" = None
    """The tensors of the micro-batch whose forward runs; None while nothing is to be offloaded."""
    copies: list[CopyOut] = field(default_factory=list[CopyOut])
    """The last copies out that tasks have not waited for. All but the last are over before the next forward."""

    def begin(self, micro_batch: int, module: nn.Module) -> "OffloadedTensors":
        """Return the handler of saved tensors for the forward of a micro-batch of the stage's module."""
        for copy in self.copies[:-1]:
            self.computing.wait(copy.end)
            copy.sources.clear()
        self.copies = self.copies[-1:]
        self.current = OffloadedTensors(self, micro_batch, module)
        return self.current

    def pause(self) -> None:
        """Offload nothing in the next forward."""
        self.current = None

    def compute(self, inner: nn.Module, args: tuple[Any, ...]) -> Any:
        """Call offloaded operators (see `recompute_region.Keeper`)."""
        return inner(*args) if self.current is None else self.current.compute(inner, args)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Keep tensors on the device."""
        if self.current is not None:
            self.current.held += tensors


@dataclass(slots=True)
class _OffloadedStorage:
    # One storage elsewhere, and the saved tensors in it with their offset, size, stride and dtype.
    count: int
    host: Tensor | None
    """Where its bytes are; None if a neighbour on another rank has them."""
    views: list[tuple[ref[SavedTensor], int, torch.Size, tuple[int, ...], torch.dtype]]


@dataclass(slots=True)
class OffloadedTensors:
    """The saved tensors of one micro-batch (a `SavedTensorHandler`)."""

    owner: Offloading
    micro_batch: int
    module: nn.Module
    inside: bool = False
    """Whether an offloaded operator runs."""
    fixed: frozenset[int] = frozenset()
    """The storages that the running operator reads and that no offloaded operator made."""
    made: set[int] = field(default_factory=set[int])
    """The storages that offloaded operators have returned."""
    leaving: list[ref[SavedTensor]] = field(default_factory=list[ref[SavedTensor]])
    staying: list[ref[SavedTensor]] = field(default_factory=list[ref[SavedTensor]])
    held: list[Tensor] = field(default_factory=list[Tensor])
    """The tensors that recomputed regions keep."""
    storages: list[_OffloadedStorage] = field(default_factory=list[_OffloadedStorage])
    arrival: Mark | None = None
    """The end of the copy back, until the backward has waited for it. The task before the backward does not wait."""
    before: list[CopyOut] = field(default_factory=list[CopyOut])
    """Copies out that were over before the copy back."""
    hosts: list[Tensor] = field(default_factory=list[Tensor])
    """What the copy back reads, until its end."""
    arriving: list[PendingMessage] = field(default_factory=list[PendingMessage])
    """The messages of a neighbour, until the backward has waited for them."""

    def compute(self, inner: nn.Module, args: tuple[Any, ...]) -> Any:
        """Call an offloaded operator."""
        self.fixed = frozenset(_storages(leaves(args)) - self.made)
        self.inside = True
        try:
            results = inner(*args)
        finally:
            self.inside = False
        self.made |= _storages(leaves(results)) - self.fixed
        return results

    def on_save(self, saved: SavedTensor) -> None:
        """Note whether a tensor may leave."""
        assert saved.tensor is not None
        leaves = self.inside and _is_plain(saved.tensor) and _storage(saved.tensor) not in self.fixed
        (self.leaving if leaves else self.staying).append(ref(saved))

    def on_read(self, saved: SavedTensor) -> None:
        """Bring everything back, if that was not asked for before, and wait for it."""
        if saved.tensor is None:
            self.fetch()
        for message in self.arriving:
            message.wait()
        self.arriving = []
        if self.arrival is not None:
            self.owner.computing.wait(self.arrival)
            self.arrival, self.hosts = None, []
            for copy in self.before:
                copy.sources.clear()

    def offload(self, held: Iterable[Tensor]) -> None:
        """Start to copy what may leave to the memory of the node, and free it.

        Args:
            held: tensors that stay on the device in any case.

        Raises:
            OutOfMemory: the node lacks memory.
        """
        staying = [saved.tensor for saved in _alive(self.staying) if saved.tensor is not None]
        weights = (*self.module.parameters(), *self.module.buffers())
        fixed = _storages([*staying, *held, *self.held, *weights])
        views: dict[int, list[SavedTensor]] = {}
        for saved in _alive(self.leaving):
            if saved.tensor is not None and _storage(saved.tensor) not in fixed:
                views.setdefault(_storage(saved.tensor), []).append(saved)
        out = self.owner.copying.out
        out.wait(self.owner.computing.mark())
        with out.entered():
            self.storages, sources = self._copy_out([*views.values()])
        self.owner.copies.append(CopyOut(out.mark(), sources if self._behind_the_host else []))
        self.leaving, self.staying, self.held = [], [], []

    def fetch(self) -> None:
        """Start to copy back what was copied out, once the tasks so far have run: the backward frees what arrives."""
        computing, back, storages, self.storages = self.owner.computing, self.owner.copying.back, self.storages, []
        with computing.entered():
            arrived = [torch.empty(storage.count, dtype=torch.uint8, device=self.owner.device) for storage in storages]
        back.wait(computing.mark())
        if self.owner.copies:
            back.wait(self.owner.copies[-1].end)
        with back.entered():
            if (neighbour := self.owner.neighbour) is not None and neighbour.messages is not None:
                self.arriving = neighbour.messages.fetch(neighbour.replica, arrived, neighbour.rank)
            for storage, buffer in zip(storages, arrived, strict=True):
                self._copy_back(storage, buffer)
        self.arrival = back.mark()
        if self._behind_the_host:
            self.before = [*self.owner.copies]
            self.hosts = [storage.host for storage in storages if storage.host is not None]

    @property
    def _behind_the_host(self) -> bool:
        # Whether copies run after the calls that start them, on streams of their own.
        return self.owner.copying.out is not self.owner.computing

    def _copy_out(self, storages: list[list[SavedTensor]]) -> tuple[list[_OffloadedStorage], list[Tensor]]:
        # Returns the copies, and what they read.
        copies: list[_OffloadedStorage] = []
        sources: list[Tensor] = []
        neighbour = self.owner.neighbour
        for saved_tensors in storages:
            tensors = [(saved, saved.tensor) for saved in saved_tensors if saved.tensor is not None]
            storage = tensors[0][1].untyped_storage()
            sources.append(torch.empty(0, dtype=torch.uint8, device=self.owner.device).set_(storage))
            views = [(ref(saved), int(it.storage_offset()), it.size(), it.stride(), it.dtype) for saved, it in tensors]
            host = None
            if neighbour is None or neighbour.messages is None:
                host = self.host_buffer(storage.nbytes())
                host.copy_(sources[-1], non_blocking=True)
            copies.append(_OffloadedStorage(storage.nbytes(), host, views))
            for saved, _ in tensors:
                saved.tensor = None
        if neighbour is not None and neighbour.messages is not None:
            neighbour.messages.offload(neighbour.replica, self.micro_batch, sources, neighbour.rank)
        return copies, sources

    def host_buffer(self, count: int) -> Tensor:
        """Return bytes in the memory of the node, or of the device if its neighbour is in this rank.

        Raises:
            OutOfMemory: the node lacks them.
        """
        if self.owner.neighbour is not None:
            return torch.empty(count, dtype=torch.uint8, device=self.owner.device)
        try:
            return kind_of(self.owner.device).host_buffer(count)
        except RuntimeError as error:
            raise OutOfMemory(
                f"the node lacks {format_bytes(count)} that micro-batch {self.micro_batch} offloads: {error}",
                where=f"stage '{self.owner.stage_name}'",
                remedy="Offload less, or run fewer ranks on the node.",
            ) from error

    def _copy_back(self, storage: _OffloadedStorage, arrived: Tensor) -> None:
        if storage.host is not None:
            arrived.copy_(storage.host, non_blocking=True)
        for view, offset, size, stride, dtype in storage.views:
            if (saved := view()) is not None:
                tensor = torch.empty(0, dtype=dtype, device=self.owner.device)
                saved.tensor = tensor.set_(arrived.untyped_storage(), offset, size, stride)


def _alive(references: Iterable[ref[SavedTensor]]) -> list[SavedTensor]:
    return [saved for reference in references if (saved := reference()) is not None]


def _is_plain(tensor: Tensor) -> bool:
    # Other kinds of tensors cannot be restored from the bytes of their storage.
    plain = type(tensor) is Tensor and tensor.layout is torch.strided
    return plain and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storages(tensors: Iterable[Tensor]) -> set[int]:
    return {_storage(tensor) for tensor in tensors if tensor.layout is torch.strided}
