"""Options and counters of optimizers and schedules as JSON holds them, and back into the types they had."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput


def plain(value: object, where: str) -> Any:
    """Return a value as JSON can hold it: tuples become lists, keys become text, a tensor of one number the number.

    Raises:
        InvalidInput: it holds something else.
    """
    if value is None or isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, object]", value).items()
        return {str(key): plain(each, f"{where}, {key}") for key, each in items}
    if isinstance(value, list | tuple):
        return [plain(each, where) for each in cast("list[object]", value)]
    raise InvalidInput(
        f"{value!r:.40} cannot be saved in a checkpoint", where=where, remedy="Choose another optimizer."
    )


def like(saved: Any, own: Any) -> Any:
    """Return what `plain` made of a value, in the types of the value that now stands in its place.

    Raises:
        ValueError: it was made of another kind of value.
    """
    if not _fits(saved, own):
        raise ValueError(f"{saved!r:.40} stands for {own!r:.40}")
    if isinstance(own, Tensor):
        return torch.full_like(own, saved)
    if isinstance(own, tuple):
        pairs = zip(cast("list[Any]", saved), cast("tuple[Any, ...]", own), strict=True)
        return tuple(like(each, other) for each, other in pairs)
    if isinstance(own, list) and isinstance(saved, list) and len(cast("list[Any]", own)) == len(saved):
        pairs = zip(cast("list[Any]", saved), cast("list[Any]", own), strict=True)
        return [like(each, other) for each, other in pairs]
    if isinstance(own, dict) and isinstance(saved, dict):
        theirs = cast("dict[str, Any]", saved)
        places = {str(key): (key, each) for key, each in cast("dict[Any, Any]", own).items()}
        found = {
            places.get(key, (key,))[0]: like(each, places.get(key, (key, None))[1]) for key, each in theirs.items()
        }
        return Counter(found) if isinstance(own, Counter) else found
    return saved


def _fits(saved: object, own: object) -> bool:
    # Truth values and texts are taken as they come, and anything may stand where there is nothing yet.
    if isinstance(own, list | tuple):
        return isinstance(saved, list)
    if isinstance(own, Mapping):
        return isinstance(saved, dict)
    number = isinstance(own, Tensor | int | float) and not isinstance(own, bool)
    return not number or isinstance(saved, int | float)
