"""How saved tensors lie in memory, so that another device can bring them back with the same strides, bit for bit.

A kernel may sum in another order where strides differ. So a tensor is sent densely, and put into memory like its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape and strides of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> "Layout":
        """Return the layout of a tensor."""
        return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of what `dense` returns."""
        return math.prod(self._distinct) * self.dtype.itemsize

    def dense(self, tensor: Tensor) -> Tensor:
        """Return the values of a tensor of this layout, contiguous, each repeated value once."""
        for dim in self._repeated:
            tensor = tensor.narrow(dim, 0, 1)
        return tensor.permute(self._order).contiguous()

    def buffer(self, device: torch.device) -> Tensor:
        """Return memory for what `dense` returns."""
        shape = self._distinct
        return torch.empty([shape[dim] for dim in self._order], dtype=self.dtype, device=device)

    def laid_out(self, dense: Tensor) -> Tensor:
        """Return a tensor of this layout, given what `dense` returned elsewhere."""
        order = self._order
        values = dense.permute([order.index(dim) for dim in range(len(order))])
        if values.stride() != self.strides:
            memory = torch.empty_strided(self._distinct, self.strides, dtype=self.dtype, device=dense.device)
            values = memory.copy_(values)
        return values.as_strided(self.shape, self.strides) if self._repeated else values

    @property
    def _repeated(self) -> list[int]:
        # The dimensions along which one value is repeated, as in an expanded tensor.
        return [dim for dim, step in enumerate(self.strides) if step == 0 and self.shape[dim] > 1]

    @property
    def _distinct(self) -> list[int]:
        repeated = self._repeated
        return [1 if dim in repeated else size for dim, size in enumerate(self.shape)]

    @property
    def _order(self) -> list[int]:
        # From the largest stride to the smallest: the order in memory.
        return sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim])


@dataclass(frozen=True, slots=True)
class SavedLayout:
    """A tensor that an operation has saved."""

    layout: Layout
    same_as: int | None
    """The position of an earlier saved tensor with the same memory and layout; None if there is none."""
    parameter: tuple[int, int] | None
    """The position of the parameter that it is a part of, and the offset in it; None if it is of another tensor."""


def saved_layouts(tensors: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[SavedLayout]:
    """Return the layouts of saved tensors, given the parameters of their module."""
    homes = {each.untyped_storage().data_ptr(): at for at, each in enumerate(parameters) if each.numel()}
    first: dict[tuple[int, Layout], int] = {}
    found: list[SavedLayout] = []
    for at, tensor in enumerate(tensors):
        layout, home = Layout.of(tensor), homes.get(tensor.untyped_storage().data_ptr())
        parameter = None
        if home is not None and tensor.numel() and tensor.dtype == parameters[home].dtype:
            parameter = home, int(tensor.storage_offset() - parameters[home].storage_offset())
        earlier = first.setdefault((tensor.data_ptr(), layout), at) if tensor.numel() else at
        found.append(SavedLayout(layout, None if earlier == at else earlier, parameter))
    return found
