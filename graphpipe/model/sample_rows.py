"""Loops over the samples of a mini-batch, while a forward is traced whose number of samples is a variable.

Such a loop would fix the number. LLaVA lists the features of all images, and joins the list again with `torch.cat`.
This is followed: it only joins the first two dimensions. Everything else that is done with single samples is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphpipe.model.torch_private import flatten, size_at

_UNBIND: tuple[Any, ...] = (torch.unbind, Tensor.unbind)


class OneSample:
    """A row of a tensor, of which only its place is known.

    Args:
        tensor: whose first dimension is a variable number of samples.
        position: of the row.
        count: of all rows.
    """

    def __init__(self, tensor: Tensor, position: int, count: int) -> None:
        self.tensor = tensor
        self.position = position
        self.count = count

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Join all rows of one tensor, and refuse everything else."""
        rows, dim = (*args, (kwargs or {}).get("dim", 0), None)[:2]
        if func is torch.cat and dim == 0 and isinstance(rows, Sequence) and _are_all_rows(rows):
            return rows[0].tensor.flatten(0, 1)
        raise _refused()

    def __getattr__(self, name: str) -> Any:
        raise _refused()

    def _refuse(self, *_: object) -> Any:
        raise _refused()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __getitem__ = __iter__ = __len__ = _refuse


def _are_all_rows(rows: Sequence[Any]) -> bool:
    first = rows[0] if rows else None
    return (
        isinstance(first, OneSample)
        and len(rows) == first.count
        and all(
            isinstance(row, OneSample) and row.tensor is first.tensor and row.position == position
            for position, row in enumerate(rows)
        )
    )


def _refused() -> RuntimeError:
    return RuntimeError("its forward loops over the samples of a mini-batch, whose number is not known before it runs")


class SampleLoops(TorchFunctionMode):
    """While inside, tensors whose first dimension is a variable number fall apart into `OneSample`s.

    Args:
        samples: the number of rows of each of them. A forward that uses it in another way gives another trace for
            another number.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.count = 0
        """The loops so far."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, or start a loop."""
        if func is Tensor.__len__ and _is_over_samples(*args):  # list(...) asks for it
            self.count += 1
            return self.samples
        if func in _UNBIND and _is_over_samples(*args, **(kwargs or {})):
            self.count += 1
            return tuple(OneSample(args[0], position, self.samples) for position in range(self.samples))
        try:
            return func(*args, **(kwargs or {}))
        except TypeError as error:
            if any(isinstance(each, OneSample) for each in flatten((args, kwargs))[0]):  # as a size, in ViLT
                raise _refused() from error
            raise


def _is_over_samples(tensor: Tensor, dim: int = 0) -> bool:
    if dim not in (0, -tensor.dim()) or not isinstance(tensor.shape[0], torch.SymInt):
        return False
    try:
        return bool(size_at(tensor.shape[0], 2))
    except ValueError:  # a number of rows that depends on values
        return False
