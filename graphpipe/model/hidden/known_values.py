"""Small tensors with data among tensors without: what a forward decides by their values can be followed.

self.is_number = torch.tensor([True, False])      a plain attribute, which no training changes
for column, is_number in enumerate(self.is_number):
    if is_number: ...
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphpipe.model.torch_private import flatten, is_functorch_wrapped_tensor, memory_key, outside_tracing

_SMALL = 4_096
"""Elements of a tensor up to which what is computed from it has data too."""
_READS = frozenset(
    getattr(owner, name)
    for name in (
        *("unbind", "__iter__", "__getitem__", "__bool__", "__int__", "__index__", "item", "tolist", "nonzero"),
        *("any", "all", "sum", "max", "min", "logical_not", "__invert__", "eq", "ne", "lt", "le", "gt", "ge"),
        *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    )
    for owner in (Tensor, torch)
    if hasattr(owner, name)
)
"""What forwards do to decide."""
_CHANGES = re.compile(r"__i\w+__|__setitem__|(?!__)\w+_")
"""Names of functions that write into their first argument,"""
_UNCHANGED = ("__index__", "__int__", "__invert__", "__iter__")
"""but for these."""


class KnownValues(TorchFunctionMode):
    """While inside, what a forward reads from small tensors with data is what they hold, and leaves no operator."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, outside of the trace if it reads known values."""
        kwargs = kwargs or {}
        if func in _READS and have_data(args, kwargs) and memory_key(args[0]) not in self._changed:
            with outside_tracing():
                return func(*args, **kwargs)
        if _writes(func) and args and isinstance(args[0], Tensor):
            self._changed.add(memory_key(args[0]))
        return func(*args, **kwargs)


def have_data(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the arguments of a function hold a tensor, and all tensors in them are small and have data."""
    first: Any = args[0][0] if args and isinstance(args[0], list | tuple) and args[0] else [*args, None][0]
    if not _has_data(first):  # asked for every operator, of which most have none
        return False
    return all(_has_data(each) for each in flatten((args, kwargs))[0] if isinstance(each, Tensor))


def _has_data(value: object) -> bool:
    if not isinstance(value, Tensor) or type(value) not in (Tensor, nn.Parameter) or value.is_meta:
        return False
    return value.numel() <= _SMALL and not is_functorch_wrapped_tensor(value)  # as a row in `torch.vmap` is


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name not in _UNCHANGED and _CHANGES.fullmatch(name) is not None
