"""Whether an operator mixes the samples of a batch, from its shapes for two numbers of samples."""

from collections.abc import Sequence
from typing import Any

from graphpipe.model.torch_private import Operator, is_random, is_view, reads_no_values

Shapes = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Of one tensor, for few and for many samples."""
_ALONG = {
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp"), 1),
    **dict.fromkeys(("cummax", "cummin", "sort", "argsort", "flip"), 1),
    "roll": 2,
}
"""Operators that compute along dimensions and keep the shape, with the position of the dimensions."""


def mixes(function: Any, args: Sequence[Any], read: Sequence[Shapes], returned: Sequence[Shapes]) -> str:
    """Return the name of an operator if it mixes samples, or else nothing.

    It does if its floating-point results have no dimension that grows with samples, although an argument has; if a
    result has more such dimensions than any argument; or if it computes along such a dimension.

    Args:
        function: the operator.
        args: by position; only dimensions are read.
        read: shapes of its floating-point arguments.
        returned: shapes of its floating-point results.
    """
    if not isinstance(function, Operator) or not returned or is_view(function) or reads_no_values(function):
        return ""
    if any(None in sizes for shapes in returned for sizes in shapes):
        return ""  # some of the samples, whose number depends on values
    name = function.overloadpacket.__name__
    most = max((_growing(each) for each in read), default=0)
    if not most or is_random(function) or "batch_norm" in name or "instance_norm" in name:
        return ""
    if not any(map(_growing, returned)) or any(_compares(each) and not any(map(_compares, read)) for each in returned):
        return name
    if name in _ALONG and len(args) > _ALONG[name]:
        dims = args[_ALONG[name]]
        (few, many), *_ = (each for each in read if _growing(each))
        along = [dims] if isinstance(dims, int) else list(dims) if isinstance(dims, tuple | list) else []
        return name if any(isinstance(at, int) and few[at] != many[at] for at in along) else ""
    return ""


def _growing(shapes: Shapes) -> int:
    few, many = shapes
    return sum(one is not other and one != other for one, other in zip(few, many, strict=False))


def _compares(shapes: Shapes) -> bool:
    # Whether two dimensions are equal numbers that grow alike.
    pairs = [(one, other) for one, other in zip(*shapes, strict=False) if one is not other and one != other]
    return len(pairs) > len({*pairs})
