"""Types of values that PyTorch cannot look into: dataclasses with tensors are registered with it, others are found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import TreeSpec, flatten

_EMPTY = CellType()
"""What a function will have, and does not have yet."""
_DEEPEST = 4
"""Levels of objects in each other that are searched for tensors."""


def flatten_open(value: object) -> tuple[list[Any], TreeSpec]:
    """Return the leaves and the containers of a value, as `flatten`. Dataclasses that hold tensors are containers."""
    leaves, spec = flatten(value)
    return flatten_open(value) if register_dataclasses(leaves) else (leaves, spec)


def register_dataclasses(leaves: Sequence[object]) -> bool:
    """Register the dataclasses among leaves that hold tensors: PyTorch looks into all of their kind from now on.

    Left out are those whose tensors `__init__` does not take: they could not be built again.

    Returns:
        Whether there were any. What is in them are leaves then.
    """
    found = {type(leaf) for leaf in leaves if _is_built_from_tensors(leaf)}
    for kind in found:
        torch.export.register_dataclass(kind)
    return bool(found)


def hides_tensors(leaf: object, *, depth: int = _DEEPEST) -> bool:
    """Whether an object that PyTorch cannot look into holds a tensor. The parameters of modules do not count.

    A function holds what it was made with: `def undo(y): return y * scale + mean` inside of a forward.
    """
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
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType | BuiltinMethodType):
        return [value.__self__, getattr(value, "__func__", None)]
    if isinstance(value, Mapping):
        return [*value.values(), *_attributes(value).values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return _attributes(value).values()


def _attributes(value: object) -> dict[str, Any]:
    slots = [
        name
        for kind in type(value).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, MemberDescriptorType)
    ]
    return {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}
