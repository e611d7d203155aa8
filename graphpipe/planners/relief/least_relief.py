"""A lower bound on the seconds that the rest of a stage's operators take to free memory (`relief`).

It is the optimum if parts of operators may be recomputed and offloaded. Then the cheapest seconds per byte come first:
the copies that the pipeline hides, and after them recomputation and further copies in the order of their cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRelief:
    """Bounds what freeing bytes costs."""

    kept: float
    """Bytes of the operators that are not decided yet if all of them are kept."""
    copy_seconds: float
    """Seconds of the copies that free one byte; infinite if nothing may be offloaded."""
    freed: Sequence[float]
    """Bytes that the cheapest recomputations free together: of none, of one, and so on. Each is cheaper than copies."""
    spent: Sequence[float]
    """Seconds of these recomputations."""

    @staticmethod
    def of(bytes_: Sequence[float], forward: Sequence[float], copy_seconds: float) -> "LeastRelief":
        """Return the bound for the operators that are not decided yet.

        Args:
            bytes_: that each operator keeps.
            forward: seconds that recomputing each operator takes.
            copy_seconds: of the copies that free one byte; infinite if nothing may be offloaded.
        """
        ways = [(seconds / count, count) for count, seconds in zip(bytes_, forward, strict=True) if count > 0]
        cheap = sorted(way for way in ways if way[0] < copy_seconds)
        return LeastRelief(
            kept=sum(bytes_),
            copy_seconds=copy_seconds,
            freed=[0.0, *accumulate(count for _, count in cheap)],
            spent=[0.0, *accumulate(rate * count for rate, count in cheap)],
        )

    def seconds(self, bytes_: Array, hidden_seconds: Array, offloaded: Array) -> Array:
        """Return the fewest seconds that freeing so many bytes takes; infinite if that is impossible.

        All arrays have the same shape.

        Args:
            bytes_: to free. They may be negative.
            hidden_seconds: of copies that take no time.
            offloaded: bytes of decided operators that are offloaded, as far as these bytes are still to free.
        """
        left = bytes_ - hidden_seconds / self.copy_seconds if self.copy_seconds else np.zeros_like(bytes_)
        least = np.interp(left, self.freed, self.spent)
        more = left > self.freed[-1]
        least[more] = self.spent[-1] + (left[more] - self.freed[-1]) * self.copy_seconds
        least[bytes_ <= 0] = 0.0
        least[bytes_ > self.kept + offloaded] = np.inf
        return least
