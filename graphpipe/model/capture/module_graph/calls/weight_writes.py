"""Which parameters and buffers of a module a run of it writes into or replaces."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from graphpipe.model.torch_private import DispatchMode, memory_key, written_arguments

RENORM = torch.ops.aten.embedding_renorm_.default
"""Shortens the rows of a table that are read (`max_norm`): once or for each micro-batch, they are the same."""


class Writes(DispatchMode):
    """While inside, notes the memory that operators write into."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is not RENORM:
            self._written += written_arguments(func, args, kwargs or {})
        return found

    def wrote_into(self, tensor: Tensor) -> bool:
        """True if an operator wrote into the memory of this tensor."""
        return any(memory_key(tensor) == memory_key(each) for each in self._written)


class WeightsBefore:
    """The parameters or the buffers of a module before a run.

    Args:
        named: returns them with their names: a method of the module that is about to run.
    """

    def __init__(self, named: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        self._named = named
        self._held = {name: (each, each.detach()) for name, each in named()}  # also keeps the memory

    def changed(self, wrote_into: Callable[[Tensor], bool]) -> tuple[str, ...]:
        """Return the names of those that were written into or replaced, or whose data were.

        Args:
            wrote_into: whether an operator has written into the memory of a tensor.
        """
        after = dict(self._named())
        return tuple(
            name
            for name, (each, old) in self._held.items()
            if after.get(name) is not each or memory_key(each) != memory_key(old) or wrote_into(old)
        )
