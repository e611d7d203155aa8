"""Tensors in lists, such as a matrix for each dimension of a parameter (SOAP, PSGD Kron), which a checkpoint names.

GG = [left, right]   ->   GG = [{"tensor": "GG.0"}, {"tensor": "GG.1"}]   and   GG.0 = left, GG.1 = right
"""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

_KEY = "tensor"


def take_tensors(value: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """Return a value with the names of the tensors in its lists in their place, and these tensors by name.

    Args:
        value: of any kind.
        name: of the value.
    """
    if isinstance(value, Tensor):
        return {_KEY: name}, {name: value}
    if not isinstance(value, list | tuple):
        return value, {}
    pairs = [take_tensors(each, f"{name}.{at}") for at, each in enumerate(cast("list[Any]", value))]
    return [without for without, _ in pairs], {key: tensor for _, inside in pairs for key, tensor in inside.items()}


def put_tensors(value: Any, tensors: Mapping[str, Tensor]) -> tuple[Any, set[str]]:
    """Return a value with the tensors in the place of their names, and the names of these tensors.

    Args:
        value: of `take_tensors`, perhaps inside of a dictionary.
        tensors: by name.
    """
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        if held.keys() == {_KEY} and held[_KEY] in tensors:
            return tensors[held[_KEY]], {held[_KEY]}
        found = {key: put_tensors(each, tensors) for key, each in held.items()}
        return {key: each for key, (each, _) in found.items()}, {name for _, names in found.values() for name in names}
    if isinstance(value, list):
        items = [put_tensors(each, tensors) for each in cast("list[Any]", value)]
        return [each for each, _ in items], {name for _, names in items for name in names}
    return value, set()
