"""The one place that installs autograd's hooks for saved tensors.

Torch calls only the innermost pair of hooks. Here handlers add up instead: with one handler inside another, both see
every tensor that autograd saves and every read of it. So a region can be recomputed inside a split backward, and
offloading or versions of weights can be one more handler.

It is in `model`, because capture counts saved bytes here; recomputation and split backwards, in `run`, import it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


@dataclass(slots=True, eq=False, weakref_slot=True)
class SavedTensor:
    """What the graph refers to in place of a tensor; the graph owns it, and drops it when its operation is done."""

    tensor: Tensor | None
    """The tensor; None while its bytes are not here. A handler that drops them must bring them back in `on_read`."""


class SavedTensorHandler(Protocol):
    """Decides what becomes of the tensors that operations save for their backward."""

    def on_save(self, saved: SavedTensor) -> None:
        """Handle a tensor that an operation has saved in its forward."""
        ...

    def on_read(self, saved: SavedTensor) -> None:
        """Handle a read by an operation in its backward: afterwards, `saved.tensor` must be there."""
        ...


_HANDLERS: ContextVar[tuple[SavedTensorHandler, ...]] = ContextVar("handlers of saved tensors", default=())


@contextmanager
def handle_saved_tensors(handler: SavedTensorHandler) -> Generator[None]:
    """Let a handler see all tensors that autograd saves inside the block, and their reads at any later time.

    Saves go from the outermost handler to the innermost, and reads the other way: what an inner handler has dropped is
    back when an outer one sees it.
    """
    handlers = (*_HANDLERS.get(), handler)

    def save(tensor: Tensor) -> SavedTensor:
        # A graph refers to what it saves. A saved tensor with a graph could refer back, also to its own operation, and
        # keep all of it for good: nothing collects cycles through autograd. Torch gives the graph back on a read.
        saved = SavedTensor(tensor if tensor.grad_fn is None else tensor.detach())
        for handler in handlers:
            handler.on_save(saved)
        return saved

    def read(saved: SavedTensor) -> Tensor:
        for handler in reversed(handlers):
            handler.on_read(saved)
        assert saved.tensor is not None, "a saved tensor was dropped and is read"
        return saved.tensor

    before = _HANDLERS.set(handlers)
    try:
        with saved_tensors_hooks(save, read):
            yield
    finally:
        _HANDLERS.reset(before)
