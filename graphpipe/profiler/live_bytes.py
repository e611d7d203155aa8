"""Bytes of memory that torch operations have allocated and not yet freed."""

import weakref
from typing import Any, final

import torch
from torch import Tensor

from graphpipe.model.torch_private import DispatchMode, flatten, memory_key


@final
class LiveBytes(DispatchMode):
    """While entered, counts the memory that operations allocate; memory that is freed later is always subtracted.

    Tensors that share memory count once. Scratch memory inside a kernel does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        """Live now."""
        self.peak = 0
        """The most live bytes since `forget_peak`."""
        self._counted = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocates."""
        given = {memory_key(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._counted and memory_key(tensor) not in given:
                self._counted.add(storage)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self.bytes)
        return result

    def forget_peak(self) -> None:
        """Start a new peak at the bytes that are live now."""
        self.peak = self.bytes

    def _free(self, count: int) -> None:
        self.bytes -= count


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
