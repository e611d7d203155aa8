"""Types of values that PyTorch cannot look into: dataclasses with tensors are registered with it, others are found."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import flatten

_DEEPEST = 4
"""Levels of objects in each other that are searched for tensors."""


def register_dataclasses(value: object) -> bool:
    """Register the dataclasses in a value that hold tensors, so that PyTorch looks into all of their kind from now on.

    Left out are those whose tensors `__init__` does not take: they could not be built again.

    Returns:
        Whether there were any.
    """
    found = {type(leaf) for leaf in flatten(value)[0] if _is_built_from_tensors(leaf)}
    for kind in found:
        torch.export.register_dataclass(kind)
    if found:
        register_dataclasses(value)  # what is inside has become visible
    return bool(found)


def hides_tensors(leaf: object, *, depth: int = _DEEPEST) -> bool:
    """Whether an object that PyTorch cannot look into holds a tensor. The parameters of modules do not count."""
    if isinstance(leaf, Tensor):
        return depth < _DEEPEST
    if not depth or isinstance(leaf, str | bytes | int | float | type | nn.Module):
        return False
    return any(hides_tensors(each, depth=depth - 1) for each in _inside(leaf))


def _is_built_from_tensors(leaf: object) -> bool:
    if not is_dataclass(leaf) or isinstance(leaf, type) or not hides_tensors(leaf):
        return False
    given = {field.name for field in fields(leaf) if field.init}
    return not any(hides_tensors([each]) for name, each in _attributes(leaf).items() if name not in given)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.values(), *_attributes(value).values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return _attributes(value).values()


def _attributes(value: object) -> dict[str, Any]:
    named = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    slots = [name for each in named for name in ([each] if isinstance(each, str) else each)]
    return {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}
