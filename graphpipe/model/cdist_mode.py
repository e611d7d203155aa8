"""How `torch.cdist` computes distances, which does not depend on the number of samples if the other side is large."""

from collections.abc import Mapping, Sequence
from typing import Any

_FEW = 25
"""With at most so many rows on both sides, torch multiplies no matrices."""
_AUTO = "use_mm_for_euclid_dist_if_necessary"


def with_mode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call of `torch.cdist`, so that it does not ask for the number of samples.

    Nothing else is computed: torch multiplies matrices if one side has many rows, as the codebook of a codec has. But
    it asks for the rows of the first side first.
    """
    other = args[1] if len(args) > 1 else kwargs["x2"]
    rows = other.shape[-2]
    decided = isinstance(rows, int) and rows > _FEW and len(args) < 4
    if decided and kwargs.get("compute_mode", _AUTO) == _AUTO:
        return {**kwargs, "compute_mode": "use_mm_for_euclid_dist"}
    return dict(kwargs)
