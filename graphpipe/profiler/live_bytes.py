"""The bytes of tensors that operations make and that are alive, as long as someone looks."""

import weakref
from typing import Any, final

import torch
from torch import Tensor

from graphpipe.model.torch_private import DispatchMode, flatten, memory_key


@final
class Living(DispatchMode):
    """Counts, while it is entered, the memory that operations make; what is freed is noticed at any time.

    Memory counts once, whatever tensors share it, and that which a kernel needs inside does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        """Alive now."""
        self.peak = 0
        """The most that was alive since `forget_peak`."""
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it makes."""
        given = {memory_key(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._known and memory_key(tensor) not in given:
                self._known.add(storage)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def forget_peak(self) -> None:
        """Look for the peak from now on."""
        self.peak = self.bytes

    def _free(self, count: int) -> None:
        self.bytes -= count


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
