"""What autograd saved in a forward, held where it can be let go before the graph that refers to it."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakSet

from torch import Tensor
from torch.autograd.graph import Node, saved_tensors_hooks

from graphpipe.model.torch_private import running_node


@dataclass(slots=True, eq=False, weakref_slot=True)
class Box:
    """One saved tensor, and the operations that have read it so far."""

    tensor: Tensor | None
    readers: list[Node | None] = field(default_factory=list[Node | None])
    spare: bool = False
    """Nobody should read it any more."""


@dataclass(slots=True)
class Shelf:
    """The saved tensors of one micro-batch; the graph owns them.

    Autograd frees what operations saved when they run for the last time, all or nothing. Between the two halves of a
    split backward, operations that only pass gradients on will not run again: what they alone read can go. Not so where
    an operation reads for others, as inside torch.utils.checkpoint: a trial tells.
    """

    trial: bool
    """Let nothing go, and see whether that would be a mistake."""
    mistaken: bool = False
    """What would have been let go was read again."""
    boxes: WeakSet[Box] = field(default_factory=WeakSet[Box])

    @contextmanager
    def keeping(self) -> Generator[None]:
        """Put on this shelf all that autograd saves inside."""
        with saved_tensors_hooks(self._put, self._read):
            yield

    def keep_for(self, nodes: Collection[Node]) -> None:
        """Let go of what operations have read, unless one of `nodes` has; what nobody has read stays."""
        for box in self.boxes:
            if box.readers and not any(reader in nodes for reader in box.readers):
                box.spare = True
                box.tensor = box.tensor if self.trial else None
            box.readers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that the tensors on the shelf lie in, each counted once."""
        storages = [box.tensor.untyped_storage() for box in self.boxes if box.tensor is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _put(self, tensor: Tensor) -> Box:
        box = Box(tensor)
        self.boxes.add(box)
        return box

    def _read(self, box: Box) -> Tensor:
        assert box.tensor is not None, "the weight half reads what was let go after the input half"
        self.mistaken |= box.spare
        box.readers.append(running_node())
        return box.tensor
