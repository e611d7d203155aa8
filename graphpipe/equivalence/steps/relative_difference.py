"""How far two tensors are apart, beyond what rounding explains."""

from collections.abc import Iterable

import torch
from torch import Tensor

DOUBLE, SINGLE = 1e-6, 1e-5
"""Differences relative to the largest element of a tensor that count as rounding. In double precision, these are the
constants that the captured model has in single precision."""
_CANCELLED_DOUBLE, _CANCELLED_SINGLE = 1e-9, 1e-6
"""The same, relative to the largest gradient of all: a gradient that is a sum of terms which cancel is rounded relative
to its terms."""


def relative_difference(expected: Tensor, found: Tensor, largest: float = 0.0, allowed: float = 0.0) -> float:
    """Return the largest difference of two tensors, relative to the largest element expected; 0 if it is rounding.

    Args:
        expected: in plain PyTorch.
        found: to compare with it.
        largest: the largest element of all tensors that are summed with these.
        allowed: a difference that counts as rounding.
    """
    if expected.shape != found.shape:
        return 1.0
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(expected, found) else float((expected != found).double().mean())
    single = is_single([expected, found])
    relative, cancelled = (SINGLE, _CANCELLED_SINGLE) if single else (DOUBLE, _CANCELLED_DOUBLE)
    scale, away = largest_of(expected), distance(expected, found)
    if away <= max(relative * scale, cancelled * largest, allowed):
        return 0.0
    return away / scale if scale else 1.0


def is_single(tensors: Iterable[Tensor]) -> bool:
    """Return whether any of the tensors is not in double precision."""
    return any(each.dtype not in (torch.float64, torch.complex128) for each in tensors)


def largest_of(tensor: Tensor) -> float:
    """Return the largest magnitude of a tensor's finite elements."""
    whole = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    largest = float(whole.abs().max()) if whole.numel() else 0.0
    return largest if largest < float("inf") else float(whole.abs().nan_to_num(nan=0.0, posinf=0.0).max())


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors of one shape. Where both are not finite alike, they are equal."""
    one, other = one.detach(), other.detach()
    if not one.numel():
        return 0.0
    largest = float((one - other).abs().max())
    if largest < float("inf"):
        return largest
    same = (one == other) | ((one != one) & (other != other))
    apart = torch.where(same, torch.zeros_like(one), (one - other).abs())
    largest = float(apart.max())
    return largest if largest == largest else float("inf")
