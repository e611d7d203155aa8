"""What a stage recomputes: which of its operators forget what they saved, and compute again when the backward comes.

    none        everything that the operators saved stays, for every sample in flight
    full        the stage is one region: only what it received stays
    names       each operator or submodule is a region of its own: what it read stays, what it saved inside does not

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).
"""

from collections.abc import Iterable
from typing import Literal

Recompute = Literal["none", "full"] | tuple[str, ...]
"""Names are those of operators, or of submodules: `layers.3` stands for all operators `layers.3.*` together."""


def regions(ops: Iterable[str], recompute: Recompute) -> tuple[tuple[str, ...], ...]:
    """Return the operators of every region of a stage of `ops`, in order of the names; none without recomputation."""
    if recompute == "none":
        return ()
    inside = tuple(ops)
    if recompute == "full":
        return (inside,)
    return tuple(tuple(op for op in inside if op == name or op.startswith(f"{name}.")) for name in recompute)
