"""The operators that a stage recomputes: they free what they saved, and are computed again in the backward.

    none        everything that the operators saved is kept, for every sample in flight
    full        the stage is one region: only what it received is kept
    names       each operator or submodule is its own region: its inputs are kept, what it saved inside is freed

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).
"""

from collections.abc import Iterable, Iterator
from typing import Literal

Recompute = Literal["none", "full"] | tuple[str, ...]
"""Names of operators or submodules. `layers.3` means all operators `layers.3.*` together."""


def regions(ops: Iterable[str], recompute: Recompute) -> tuple[tuple[str, ...], ...]:
    """Return the operators of every region of a stage of `ops`, in order of the names; empty without recomputation."""
    if recompute == "none":
        return ()
    if recompute == "full":
        return (tuple(ops),)
    ops_by_name = {name: list[str]() for name in recompute}
    for op in ops:
        for name in _itself_and_above(op):
            if name in ops_by_name:
                ops_by_name[name].append(op)
    return tuple(tuple(ops_by_name[name]) for name in recompute)


def _itself_and_above(op: str) -> Iterator[str]:
    """Yield the name of an operator, and of the submodules that it is in."""
    yield op
    dot = op.find(".")
    while dot >= 0:
        yield op[:dot]
        dot = op.find(".", dot + 1)
