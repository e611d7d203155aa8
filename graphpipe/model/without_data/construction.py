"""How a function built a model: what it takes to make some of its tensors again, and no others."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from torch import nn

from graphpipe.model.without_data.constructing import Origin

ModelBuilder = Callable[[], nn.Module]
"""A function without arguments that returns the user's model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """What a function did while it built a model (see `Constructing`)."""

    build: ModelBuilder
    origins: Mapping[str, Origin | None]
    """How each parameter or buffer was made, by each of its names; None if it had data all the time. Those that the
    function made on the meta device are missing: it does not make their values."""
    reads: Mapping[Origin, Set[Origin]]
    """Whose values were written into the tensors of each origin."""
    draws: int
    """How often it drew random numbers that were not written into a registered tensor."""

    def needed(self, names: Iterable[str]) -> frozenset[Origin]:
        """Return the origins whose tensors need data, so that some tensors have their values."""
        found: set[Origin] = set()
        waiting = [origin for name in names if (origin := self.origins[name]) is not None]
        while waiting:
            origin = waiting.pop()
            if origin not in found:
                found.add(origin)
                waiting += self.reads[origin]
        return frozenset(found)
