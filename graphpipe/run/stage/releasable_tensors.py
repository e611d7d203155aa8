"""What autograd saved in a forward, held where it can be let go before the graph that refers to it."""

from collections.abc import Callable, Collection, Generator
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
    an operation reads for others, as inside torch.utils.checkpoint: a trial tells, which lets nothing go.
    """

    trusts: Callable[[int], bool]
    """Whether graphs that saved so many tensors have been tried, with success: a model may build another one in another
    mode, or for longer samples."""
    saved: int = 0
    """Tensors that were put here."""
    mistaken: bool = False
    """What was let go, or would have been but for the trial, was read again."""
    boxes: WeakSet[Box] = field(default_factory=WeakSet[Box])

    @contextmanager
    def keeping(self) -> Generator[None]:
        """Put on this shelf all that autograd saves inside."""
        with saved_tensors_hooks(self._put, self._read):
            yield

    def keep_for(self, nodes: Collection[Node]) -> None:
        """Let go of what operations have read, unless one of `nodes` has; what nobody has read stays."""
        trial = not self.trusts(self.saved)
        for box in self.boxes:
            if box.readers and not any(reader in nodes for reader in box.readers):
                box.spare = True
                box.tensor = box.tensor if trial else None
            box.readers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that the tensors on the shelf lie in, each counted once."""
        storages = [box.tensor.untyped_storage() for box in self.boxes if box.tensor is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _put(self, tensor: Tensor) -> Box:
        box = Box(tensor)
        self.boxes.add(box)
        self.saved += 1
        return box

    def _read(self, box: Box) -> Tensor:
        assert box.tensor is not None, "the weight half reads what was let go after the input half"
        self.mistaken |= box.spare
        box.readers.append(running_node())
        return box.tensor
