"""Trees of tensors: a tensor, or nested tuples, lists and dicts of tensors, as models return and losses take.

Containers that are registered with PyTorch, as a capture does with dataclasses, are also part of a tree.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.model.torch_private import TreeSpec, flatten, unflatten


def leaves(tree: object) -> list[Tensor]:
    """Return the tensors of a tree, in order, without its other values."""
    tensors: list[Tensor] = []
    map_tensors(tree, tensors.append)
    return tensors


def map_tensors(tree: object, change: Callable[[Tensor], Any]) -> Any:
    """Return the tree with every tensor replaced by `change(tensor)`. Other values are kept."""
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
    parts, spec = _flatten_one_level(tree)
    return tree if spec.is_leaf() else unflatten([map_tensors(part, change) for part in parts], spec)


def find_unknown_type(tree: object) -> type | None:
    """Return the type of the first object in a tree that may hide tensors, or None.

    It is not a tensor, a number, a string or None, nor a container that PyTorch can flatten.
    """
    if tree is None or isinstance(tree, Tensor | int | float | str):
        return None
    if isinstance(tree, Mapping):
        parts = [*cast("Mapping[Any, object]", tree).values()]
    else:
        parts, spec = _flatten_one_level(tree)
        if spec.is_leaf():
            return type(tree)
    return next((kind for part in parts if (kind := find_unknown_type(part)) is not None), None)


def describe(tree: object) -> Any:
    """Return the structure of a tree as JSON data, which `rebuild` reads.

    A tensor becomes [dtype, shape]. A container that is registered with PyTorch becomes a list.
    """
    if isinstance(tree, Tensor):
        return {"tensor": [str(tree.dtype).removeprefix("torch."), list(tree.shape)]}
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, object]", tree).items()
        return {"dict": [[key, describe(value)] for key, value in items]}
    if isinstance(tree, tuple | list):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [describe(part) for part in cast("Iterable[object]", tree)]}
    parts, spec = _flatten_one_level(tree)
    if not spec.is_leaf():
        return {"list": [describe(part) for part in parts]}
    return {"plain": tree if isinstance(tree, int | float | str | bool) else None}


def rebuild(description: Any) -> Any:
    """Return the tree that `describe` described, with uninitialised tensors on the CPU in place of its tensors."""
    ((kind, body),) = description.items()
    if kind == "tensor":
        return torch.empty(body[1], dtype=getattr(torch, body[0]))
    if kind == "dict":
        return {key: rebuild(value) for key, value in body}
    if kind in ("tuple", "list"):
        parts = [rebuild(part) for part in body]
        return tuple(parts) if kind == "tuple" else parts
    return body


def _flatten_one_level(tree: object) -> tuple[list[Any], TreeSpec]:
    # The direct children of a container, and the structure to rebuild it.
    return flatten(tree, lambda part: part is not tree)
