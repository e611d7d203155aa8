"""Options and counters of optimizers and learning-rate schedules to JSON values, and back to their own types."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.safetensors_files import dtype_name

_INFINITE = ("-infinity", "infinity")


def to_json_value(value: object, where: str) -> Any:
    """Return a value that JSON can hold: a tuple becomes a list, a key text, a dtype its name, a tensor its one number.

    Infinity, which ReduceLROnPlateau has before its first value, becomes a text.

    Raises:
        InvalidInput: the value contains something else.
    """
    if value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float) and math.isinf(value):
        return _INFINITE[value > 0]
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, object]", value).items()
        return {str(key): to_json_value(item, f"{where}, {key}") for key, item in items}
    if isinstance(value, list | tuple):
        return [to_json_value(item, where) for item in cast("list[object]", value)]
    shown = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else f"{value!r:.40}"
    raise InvalidInput(f"{shown} cannot be saved in a checkpoint", where=where, remedy="Choose another optimizer.")


def tensor_to_json(tensor: Tensor) -> dict[str, Any]:
    """Return a small tensor with its dtype, for where no tensor tells its type when it is read."""
    return {"tensor": tensor.tolist(), "dtype": dtype_name(tensor.dtype)}


def tensor_of_json(value: Any, device: torch.device) -> Any:
    """Return the tensor of `tensor_to_json`, or another value as it is."""
    if isinstance(value, dict) and value.keys() == {"tensor", "dtype"}:
        held = cast("dict[str, Any]", value)
        return torch.tensor(held["tensor"], dtype=_dtype_of(held["dtype"]), device=device)
    return value


def with_types_of(current: Any, saved: Any) -> Any:
    """Return a saved JSON value in the types of the value that it is about to replace.

    Raises:
        ValueError: the two are different kinds of value.
    """
    if isinstance(current, int | float) and saved in _INFINITE:
        return float(saved)
    if not _is_replaceable(saved, current):
        raise ValueError(f"{saved!r:.40} cannot replace {current!r:.40}")
    if isinstance(current, Tensor):
        return torch.full_like(current, saved)
    if isinstance(current, torch.dtype):
        return _dtype_of(saved)
    if isinstance(current, tuple):
        pairs = zip(cast("tuple[Any, ...]", current), cast("list[Any]", saved), strict=True)
        return tuple(with_types_of(own, item) for own, item in pairs)
    if isinstance(current, list) and isinstance(saved, list) and len(cast("list[Any]", current)) == len(saved):
        pairs = zip(cast("list[Any]", current), cast("list[Any]", saved), strict=True)
        return [with_types_of(own, item) for own, item in pairs]
    if isinstance(current, dict) and isinstance(saved, dict):
        by_text = {str(key): (key, item) for key, item in cast("dict[Any, Any]", current).items()}
        items: dict[Any, Any] = {}
        for text, item in cast("dict[str, Any]", saved).items():
            key, own = by_text.get(text, (text, None))
            items[key] = with_types_of(own, item)
        return Counter(items) if isinstance(current, Counter) else items
    return saved


def _dtype_of(name: object) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.40} is no dtype")
    return found


def _is_replaceable(saved: object, current: object) -> bool:
    # Texts, true and false are not compared, and None may be replaced by any value.
    if isinstance(current, list | tuple):
        return isinstance(saved, list)
    if isinstance(current, Mapping):
        return isinstance(saved, dict)
    is_number = isinstance(current, Tensor | int | float) and not isinstance(current, bool)
    return not is_number or isinstance(saved, int | float)
