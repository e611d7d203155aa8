"""Partial choices of what a stage keeps, recomputes and offloads (`relief`), and which of them no other one beats."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Decisions = NDArray[np.int8]
Indices = NDArray[np.intp]
KEEP, OFFLOAD, RECOMPUTE = range(3)
"""Decisions about an operator."""
_AT_ONCE = 128
"""Choices that are compared with others at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices for the operators so far, in the order of their decisions. All other arrays have the shape [choices]."""

    decisions: Decisions
    """[choices, operators]: the decision for each operator; 0 where it is not decided yet."""
    seconds: Array
    """Seconds of recomputed forwards, and of copies beyond the window."""
    bytes: Array
    copied: Array
    """Seconds of copies within the window."""
    region: Array
    """Bytes of the largest recomputed operator."""
    offloaded: Array
    """Bytes that are offloaded, if there is only so much room for them; otherwise 0."""

    @staticmethod
    def before(operators: int) -> "Choices":
        """Return the one choice before the first of these operators."""
        none = np.zeros(1)
        decisions = np.zeros((1, operators), np.int8)
        return Choices(decisions=decisions, seconds=none, bytes=none, copied=none, region=none, offloaded=none)

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, chosen: NDArray[np.bool_] | Indices) -> "Choices":
        """Return some of the choices."""
        return Choices(
            decisions=self.decisions[chosen],
            seconds=self.seconds[chosen],
            bytes=self.bytes[chosen],
            copied=self.copied[chosen],
            region=self.region[chosen],
            offloaded=self.offloaded[chosen],
        )

    def unbeaten(self, groups: Indices, most: float = inf) -> "Choices":
        """Return the choices that no other one of their group beats in any figure; at most so many of each group.

        Args:
            groups: [choices]: 0, 1, ... up to the number of groups.
            most: choices to keep of each group.
        """
        # Of equals the first, because the sort is stable.
        order = np.lexsort((self.offloaded, self.region, self.copied, self.bytes, self.seconds))
        columns = [figure[order] for figure in (self.bytes, self.copied, self.region, self.offloaded)]
        kept = order[_unbeaten(groups[order], columns)]
        counts = np.bincount(groups[kept])
        if counts.max(initial=0) > most:
            kept = np.concatenate(
                [self._spread(kept[groups[kept] == group], int(most)) for group in range(len(counts))]
            )
        return self.only(np.sort(kept))

    def _spread(self, chosen: Indices, most: int) -> Indices:
        """Return so many of the chosen, at equal distances in the order of their bytes."""
        by_bytes = chosen[np.argsort(self.bytes[chosen], kind="stable")]
        return by_bytes if len(chosen) <= most else by_bytes[evenly(len(chosen), most)]


def evenly(count: int, most: int) -> Indices:
    """Return `most` positions at equal distances, from the first to the last of `count`."""
    return np.rint(np.arange(most) * ((count - 1) / (most - 1))).astype(np.intp)


def _unbeaten(groups: Indices, columns: list[Array]) -> Indices:
    """Return the positions of rows of which no earlier row of their group has as little in every column."""
    unbeaten = np.zeros(0, np.intp)
    for first in range(0, len(groups), _AT_ONCE):
        own = np.arange(first, min(first + _AT_ONCE, len(groups)))
        # What a beaten row beats, the one that beats it beats too, so that only unbeaten rows are compared with.
        earlier = np.concatenate([unbeaten, own])
        beaten = earlier[None, :] < own[:, None]
        for column in columns:
            beaten &= column[earlier][None, :] <= column[own][:, None]
        beaten &= groups[earlier][None, :] == groups[own][:, None]
        unbeaten = np.concatenate([unbeaten, own[~beaten.any(axis=1)]])
    return unbeaten
