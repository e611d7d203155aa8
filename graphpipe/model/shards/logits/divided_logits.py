"""Logits of which each rank has some columns, as a loss function sees them: a tensor with the shape of the whole.

What reads or moves rows works on the columns, and so does a cross-entropy. Anything else gets the columns of all ranks,
which are gathered then.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast, final

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.shards.logits.cross_entropy import Reduction, divided_cross_entropy
from graphpipe.model.shards.team import ShardTeam, join, own_range
from graphpipe.model.torch_private import as_tensors, flatten, unflatten, without_data

_BEFORE_LOSS: ContextVar[bool] = ContextVar("whether a loss reads the logits", default=False)
_OF_COLUMNS = frozenset(["requires_grad", "grad_fn", "is_leaf"])
"""Properties that are those of the columns; others are those of the whole."""
_OF_WHOLE = frozenset(["size", "dim", "numel", "is_floating_point", "is_complex", "__len__", "ndimension"])
_LIKE = frozenset(
    [
        *("float", "double", "half", "bfloat16", "to", "type", "_to_copy", "detach", "clone", "contiguous", "alias"),
        *("mul", "div", "true_divide", "neg", "tanh", "__mul__", "__rmul__", "__truediv__", "__neg__"),
    ]
)
"""Functions that do the same to each column: their other arguments are numbers, or tensors with one column."""
_RESHAPING = frozenset(["view", "reshape", "flatten", "unflatten", "_unsafe_view"])
_CROSS_ENTROPIES = frozenset(["cross_entropy", "cross_entropy_loss"])
_REDUCTIONS: Sequence[Reduction] = ("none", "mean", "sum")


@contextmanager
def before_loss() -> Generator[None]:
    """While inside, heads return divided logits, which a loss function will read."""
    token = _BEFORE_LOSS.set(True)
    try:
        yield
    finally:
        _BEFORE_LOSS.reset(token)


def logits(columns: Tensor, team: ShardTeam, total: int) -> Tensor:
    """Return divided logits inside `before_loss`, and the columns of all ranks elsewhere.

    Args:
        columns: of this rank (last dimension), as `own_range` says.
        team: the ranks.
        total: columns of all ranks.
    """
    return DividedLogits(columns, team, total, columns.ndim - 1) if _BEFORE_LOSS.get() else join(columns, team, total)


@final
class DividedLogits(Tensor):
    """Logits of all ranks; `columns` are those of this one, in dimension `at`."""

    columns: Tensor
    team: ShardTeam
    total: int
    at: int

    @staticmethod
    def __new__(cls: Any, columns: Tensor, team: ShardTeam, total: int, at: int) -> "DividedLogits":
        """Return the logits. Nothing is computed."""
        shape = list(columns.shape)
        shape[at] = total
        made = without_data(cls, shape, dtype=columns.dtype, device=columns.device)
        made.columns, made.team, made.total, made.at = columns, team, total, at
        return made

    def whole(self) -> Tensor:
        """Return the columns of all ranks, which they gather."""
        moved = self.columns.movedim(self.at, -1)
        return join(moved.contiguous(), self.team, self.total).movedim(-1, self.at)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do what a function does to the columns, or to those of all ranks."""
        del types
        name, named = _name_of(func), kwargs or {}
        first = args[0] if args else named.get("input")
        if isinstance(first, DividedLogits):
            if getattr(func, "__name__", "") == "__get__" or name in _OF_WHOLE:
                return first._property(func, name, args, named)
            found = _on_columns(first, name, func, args, named)
            if found is not None:
                return found
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            raise InvalidInput(
                f"'{name}' writes into the logits, whose vocabulary ranks divide",
                where="loss_fn",
                remedy="Write into a copy, or leave cross_entropy=True out of with_shards.",
            )
        leaves, spec = flatten((tuple(args), dict(named)))
        given, others = unflatten([each.whole() if isinstance(each, DividedLogits) else each for each in leaves], spec)
        return func(*given, **others)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse: there is no data of the whole."""
        raise AssertionError(f"{func} has read logits of which a rank has some columns")

    def _property(self, func: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name in _OF_COLUMNS:
            return getattr(self.columns, name)
        with as_tensors():
            return func(*args, **named)

    def like(self, columns: Tensor, at: int | None = None) -> "DividedLogits":
        """Return logits with other columns."""
        return DividedLogits(columns, self.team, self.total, self.at if at is None else at)


def _name_of(func: Any) -> str:
    if getattr(func, "__name__", "") == "__get__":
        return str(func.__self__.__name__)
    packet = getattr(func, "overloadpacket", func)  # of an operator of torch.ops
    return str(getattr(packet, "__name__", "")).rpartition(".")[2]


def _on_columns(
    given: DividedLogits, name: str, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """Return what a function does, computed from the columns; None if it needs those of all ranks."""
    rest = args[1:]
    others = [each for each in flatten((tuple(rest), dict(named)))[0] if isinstance(each, Tensor) and each.ndim]
    if name in _CROSS_ENTROPIES:
        return _cross_entropy(given, *rest, **{key: each for key, each in named.items() if key != "input"})
    if name in _LIKE and all(_has_one_column(each, given) for each in others) and not _is_learnt(rest, named):
        return given.like(func(given.columns, *rest, **named))
    last = given.ndim - 1
    if name in _RESHAPING and given.at == last:
        shape = func(torch.empty(given.shape, device="meta"), *rest, **named).shape
        return given.like(given.columns.reshape(*shape[:-1], -1), len(shape) - 1) if shape[-1] == given.total else None
    if name == "transpose":
        one, other = (int(each) % given.ndim for each in rest)
        at = {one: other, other: one}.get(given.at, given.at)
        return given.like(given.columns.transpose(one, other), at)
    if name == "__getitem__" and given.at == last and _leaves_columns(rest[0], given.ndim):
        columns = given.columns[rest[0]]
        return given.like(columns, columns.ndim - 1)
    if name == "slice" and not named and (int(rest[0]) % given.ndim if rest else 0) != given.at:
        return given.like(func(given.columns, *rest))
    if name == "slice" and tuple(rest[1:3]) in ((0, 2**63 - 1), (None, None)):
        return given
    return None


def _is_learnt(rest: Sequence[Any], named: Mapping[str, Any]) -> bool:
    # The gradient of a factor sums over all columns, not over those of a rank.
    given = flatten((tuple(rest), dict(named)))[0]
    return any(isinstance(each, Tensor) and each.requires_grad for each in given)


def _has_one_column(other: Tensor, given: DividedLogits) -> bool:
    behind = given.ndim - given.at
    return other.ndim <= given.ndim and (other.ndim < behind or other.shape[-behind] == 1)


def _leaves_columns(index: Any, dimensions: int) -> bool:
    # Whether an index takes all of the last dimension.
    items = list(cast("Sequence[Any]", index)) if isinstance(index, tuple) else [index]
    if not all(isinstance(each, slice | int | Tensor) or each is Ellipsis for each in items):
        return False
    everything = slice(None)
    if any(each is Ellipsis for each in items):
        behind = items[next(at for at, each in enumerate(items) if each is Ellipsis) + 1 :]
        return not behind or (isinstance(behind[-1], slice) and behind[-1] == everything)
    used = sum(each.ndim if isinstance(each, Tensor) and each.dtype == torch.bool else 1 for each in items)
    return used < dimensions or (isinstance(items[-1], slice) and items[-1] == everything)


def _cross_entropy(
    given: DividedLogits,
    target: Any,
    weight: Any = None,
    *positional: Any,
    reduction: Any = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    **others: Any,
) -> Tensor | None:
    # The operator of aten takes the number of a reduction, the ignored label and the smoothing by position.
    if positional:
        names = ("reduction", "ignore_index", "label_smoothing")
        if not isinstance(positional[0], int) or isinstance(positional[0], bool):
            return None
        again = partial(_cross_entropy, given, target, weight)
        return again(**{"reduction": reduction, **others, **dict(zip(names, positional, strict=False))})
    reduction = _REDUCTIONS[reduction] if isinstance(reduction, int) else reduction
    classes = 1 if given.ndim > 1 else 0
    if weight is not None or any(each is not None for each in others.values()) or given.ndim < 2 or given.at != classes:
        return None
    if not isinstance(target, Tensor) or target.is_floating_point() or reduction not in _REDUCTIONS:
        return None
    columns = given.columns.movedim(classes, -1)
    found = divided_cross_entropy(
        columns.reshape(-1, columns.shape[-1]),
        target.reshape(-1),
        given.team,
        start=own_range(given.total, given.team.size, given.team.position)[0],
        total=given.total,
        ignored=ignore_index,
        smoothing=label_smoothing,
        reduction=reduction,
    )
    return found.reshape(target.shape) if reduction == "none" else found
