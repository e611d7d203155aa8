"""Trees of tensors: a tensor, or tuples, lists and dicts of them, as models return and losses take.

So are containers that PyTorch has been told of (`torch.export.register_dataclass`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.model.torch_private import TreeSpec, flatten_unless, unflatten


def leaves(tree: object) -> list[Tensor]:
    """Return the tensors of a tree, in order; anything else in it is left out."""
    found: list[Tensor] = []
    map_tensors(tree, found.append)
    return found


def map_tensors(tree: object, change: Callable[[Tensor], Any]) -> Any:
    """Return the tree with every tensor replaced by `change(tensor)`; anything else stays as it is."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, object]", tree).items()
        return {key: map_tensors(value, change) for key, value in items}
    if isinstance(tree, tuple | list):
        parts = [map_tensors(part, change) for part in cast("Iterable[object]", tree)]
        if hasattr(tree, "_fields"):
            return type(tree)(*parts)
        return tuple(parts) if isinstance(tree, tuple) else parts
    parts, spec = _opened(tree)
    return tree if spec.is_leaf() else unflatten([map_tensors(part, change) for part in parts], spec)


def stranger(tree: object) -> type | None:
    """Return the type of an object in a tree of which nothing is known: it may hold tensors. None if there is none."""
    if tree is None or isinstance(tree, Tensor | int | float | str):
        return None
    if isinstance(tree, Mapping):
        parts = [*cast("Mapping[Any, object]", tree).values()]
    else:
        parts, spec = _opened(tree)
        if spec.is_leaf():
            return type(tree)
    return next((kind for part in parts if (kind := stranger(part)) is not None), None)


def describe(tree: object) -> Any:
    """Return the tree's shape as JSON can hold it; `rebuild` reads it. Tensors become [dtype, shape], containers that
    only PyTorch knows lists."""
    if isinstance(tree, Tensor):
        return {"tensor": [str(tree.dtype).removeprefix("torch."), list(tree.shape)]}
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, object]", tree).items()
        return {"dict": [[key, describe(value)] for key, value in items]}
    if isinstance(tree, tuple | list):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [describe(part) for part in cast("Iterable[object]", tree)]}
    parts, spec = _opened(tree)
    if not spec.is_leaf():
        return {"list": [describe(part) for part in parts]}
    return {"plain": tree if isinstance(tree, int | float | str | bool) else None}


def rebuild(description: Any) -> Any:
    """Return the tree that `describe` described, with empty tensors on the CPU in place of its tensors."""
    ((kind, body),) = description.items()
    if kind == "tensor":
        return torch.empty(body[1], dtype=getattr(torch, body[0]))
    if kind == "dict":
        return {key: rebuild(value) for key, value in body}
    if kind in ("tuple", "list"):
        parts = [rebuild(part) for part in body]
        return tuple(parts) if kind == "tuple" else parts
    return body


def _opened(tree: object) -> tuple[list[Any], TreeSpec]:
    # What is right inside of a container, and its arrangement.
    return flatten_unless(tree, lambda part: part is not tree)
