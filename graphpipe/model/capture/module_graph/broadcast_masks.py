"""Masks of attention that `transformers` computes with `torch.vmap`, while a forward is traced.

`torch.vmap` cannot be followed. The functions of a mask take positions, one by one, so positions that are broadcast
give the same mask. This is what transformers itself does for masks that are not of the user's own.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor

_MASKS = "transformers.masking_utils"


@contextmanager
def broadcast_masks() -> Generator[None]:
    """While inside, masks are computed by broadcasting, as in Gemma 3 with images."""
    masks: Any = sys.modules.get(_MASKS)
    names = ("_vmap_expansion_sdpa", "TransformGetItemToIndex")
    found = {name: getattr(masks, name) for name in names if hasattr(masks, name)}
    if len(found) < len(names):
        yield
        return
    masks._vmap_expansion_sdpa, masks.TransformGetItemToIndex = _broadcast, nullcontext
    try:
        yield
    finally:
        for name, each in found.items():
            setattr(masks, name, each)


def _broadcast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def mask(samples: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        positions = (
            samples[:, None, None, None],
            heads[None, :, None, None],
            queries[None, None, :, None],
            keys[None, None, None, :],
        )
        return function(*positions).expand(*(each.shape[0] for each in (samples, heads, queries, keys)))

    return mask
