"""Saved tensors that can be released between the two halves of a split backward, before their graph is freed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch.autograd.graph import Node

from graphpipe.model.halves.current_half import running_half
from graphpipe.model.saved_tensors import SavedTensor
from graphpipe.model.torch_private import current_backward_node, memory_key


@dataclass(slots=True)
class _Reads:
    # The operations that have read a saved tensor in this half, and whether the tensor was released.
    nodes: list[Node | None] = field(default_factory=list[Node | None])
    released: bool = False


def _new_reads() -> WeakKeyDictionary[SavedTensor, _Reads]:
    return WeakKeyDictionary()


def _nothing() -> tuple[None, list[SavedTensor]]:
    return None, []


@dataclass(slots=True)
class ReleasableTensors:
    """The saved tensors of one micro-batch (a `SavedTensorHandler`).

    Autograd frees all tensors of an operation at once, when the operation runs for the last time. In the input half of
    a split backward, operations that only pass gradients on run for the last time, so what they have read is released
    as soon as another operation reads. This fails where one operation reads tensors for others, as inside
    torch.utils.checkpoint. So the first graph of its kind is a trial: it keeps all tensors, and finds out whether a
    later operation would have missed one.
    """

    trusts: Callable[[int], bool]
    """Whether a graph with this number of saved tensors has passed its trial. A model may build another graph in
    another mode, or for longer samples."""
    saved: int = 0
    """Number of tensors saved."""
    mistaken: bool = False
    """Whether a tensor was read after its release, or after the point where only the trial kept it."""
    _spared: set[Node] = field(default_factory=set[Node])
    _reads: WeakKeyDictionary[SavedTensor, _Reads] = field(default_factory=_new_reads)
    _last: tuple[Node | None, list[SavedTensor]] = field(default_factory=_nothing)
    """The operation that has read last in the input half, and what it has read."""

    def on_save(self, saved: SavedTensor) -> None:
        """Keep track of a tensor."""
        self._reads[saved] = _Reads()
        self.saved += 1

    def on_read(self, saved: SavedTensor) -> None:
        """Note which operation reads a tensor."""
        assert saved.tensor is not None, "the weight half reads a tensor that was released after the input half"
        reads = self._reads[saved]
        self.mistaken |= reads.released
        node = current_backward_node()
        reads.nodes.append(node)
        if (half := running_half()) is not None and half.kind == "input":
            if node != self._last[0]:
                self._release_last(half.leaving)
                self._last = node, []
            self._last[1].append(saved)

    def release_unless_read_by(self, nodes: Collection[Node]) -> None:
        """Release the tensors that were read, but not by any of `nodes`. Tensors that were not read yet are kept."""
        for saved, reads in self._reads.items():
            if reads.nodes and not any(node in nodes for node in reads.nodes):
                self._release(saved)
            reads.nodes.clear()
        self._last = _nothing()

    def _release_last(self, leaving: Collection[Node]) -> None:
        reader, found = self._last
        if reader not in leaving:
            for saved in found:
                self._release(saved)

    def _release(self, saved: SavedTensor) -> None:
        self._reads[saved].released = True
        if self.trusts(self.saved):
            saved.tensor = None

    def spare(self, node: Node, keys: Collection[int]) -> None:
        """Release what an operation has just read, and says that it will not read again, as compiled regions do.

        Autograd hands it all that it saved in the weight half too, so an empty tensor takes the place.

        Args:
            node: the operation.
            keys: the memory keys of what it will read again.
        """
        reader, found = self._last
        held = [(saved, saved.tensor) for saved in found if saved.tensor is not None and reader == node]
        if {*keys} <= {memory_key(tensor) for _, tensor in held}:
            self._spared.add(node)
        for saved, tensor in held:
            if memory_key(tensor) not in keys:
                saved.tensor = tensor.new_empty(0)

    def take_spared(self) -> set[Node]:
        """Return the operations of which the weight half reads only saved tensors, and not the gradients that arrive.

        They are forgotten here, because they refer to what refers to these tensors.
        """
        spared, self._spared = self._spared, set()
        return spared

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' storages, each storage counted once."""
        storages = [saved.tensor.untyped_storage() for saved in self._reads if saved.tensor is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
