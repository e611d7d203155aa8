"""Saved tensors that can be released between the two halves of a split backward, before their graph is freed."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch.autograd.graph import Node

from graphpipe.model.halves.current_half import later_reads
from graphpipe.model.saved_tensors import SavedTensor
from graphpipe.model.torch_private import current_backward_node, memory_key


@dataclass(slots=True)
class _Reads:
    # The operations that have read a saved tensor in this half, and whether the tensor was released.
    nodes: list[Node | None] = field(default_factory=list[Node | None])
    released: bool = False


def _new_reads() -> WeakKeyDictionary[SavedTensor, _Reads]:
    return WeakKeyDictionary()


@dataclass(slots=True)
class ReleasableTensors:
    """The saved tensors of one micro-batch (a `SavedTensorHandler`).

    Autograd frees all tensors of an operation at once, when the operation runs for the last time. After the input half
    of a split backward, operations that only pass gradients on will not run again, so tensors that only they have read
    can be released. This fails where one operation reads tensors for others, as inside torch.utils.checkpoint. So the
    first graph of its kind is a trial: it keeps all tensors, and finds out whether the weight half would have missed
    one.
    """

    trusts: Callable[[int], bool]
    """Whether a graph with this number of saved tensors has passed its trial. A model may build another graph in
    another mode, or for longer samples."""
    saved: int = 0
    """Number of tensors saved."""
    mistaken: bool = False
    """Whether a tensor was read after its release, or after the point where only the trial kept it."""
    _reads: WeakKeyDictionary[SavedTensor, _Reads] = field(default_factory=_new_reads)

    def on_save(self, saved: SavedTensor) -> None:
        """Keep track of a tensor."""
        self._reads[saved] = _Reads()
        self.saved += 1

    def on_read(self, saved: SavedTensor) -> None:
        """Note which operation reads a tensor."""
        assert saved.tensor is not None, "the weight half reads a tensor that was released after the input half"
        reads = self._reads[saved]
        self.mistaken |= reads.released
        reads.nodes.append(current_backward_node())

    def release_unless_read_by(self, nodes: Collection[Node]) -> None:
        """Release the tensors that were read, but not by any of `nodes`. Tensors that were not read yet are kept.

        Also released is what such an operation says that it will not read again, as compiled regions do. Autograd hands
        it all that it saved, so an empty tensor takes the place.
        """
        trial = not self.trusts(self.saved)
        for saved, reads in self._reads.items():
            again = [node for node in reads.nodes if node in nodes]
            if reads.nodes and not again:
                reads.released = True
                saved.tensor = saved.tensor if trial else None
            elif again and saved.tensor is not None and _is_spared(memory_key(saved.tensor), again):
                saved.tensor = saved.tensor.new_empty(0)
            reads.nodes.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors' storages, each storage counted once."""
        storages = [saved.tensor.untyped_storage() for saved in self._reads if saved.tensor is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _is_spared(key: int, nodes: Sequence[Node | None]) -> bool:
    found = [later_reads(node) for node in nodes if node is not None]
    return all(keys is not None and key not in keys for keys in found)
