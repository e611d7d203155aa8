"""Cutting a downset into stages: the dynamic programme that the baseline planners share.

    downset     {a b c d e}  ->  {c d e}  ->  {e}  ->  {}        every arrow cuts the first stage off,
    stage             a b          c d         e                 on some devices: a *way*
    count              3            2          1                 stages from here to the end

The longer the rest of the pipeline, the more samples a stage keeps in flight: a way holds up to some count only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Indices = NDArray[np.intp]
UNLIMITED = 2**40
"""A count, or a limit on it, that is never reached."""


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways to cut the first stage off one downset, all arrays of shape [ways]."""

    below: Indices
    """Position of the smaller downset that is left."""
    devices: Indices
    seconds: Array
    """Of the stage, per sample."""
    weight: Counts
    """What the stage adds to the count."""
    limit: Counts
    """The largest count, the stage itself included, at which the stage fits in memory."""
    recomputes: NDArray[np.bool_]
    """Whether the stage recomputes in full, which takes longer and allows a larger count."""

    @staticmethod
    def together(ways: Sequence["Ways"]) -> "Ways":
        """Return all of some ways."""
        return Ways(*(np.concatenate([getattr(each, name) for each in ways]) for name in Ways.__slots__))

    def only(self, chosen: NDArray[np.bool_] | Indices) -> "Ways":
        """Return some of the ways."""
        return Ways(*(getattr(self, name)[chosen] for name in Ways.__slots__))


@dataclass(frozen=True, slots=True)
class Cut:
    """One stage of a solution: what is in downset `upper` but not in downset `lower`."""

    upper: int
    lower: int
    devices: int
    seconds: float
    fits: bool
    """Whether the stage holds its samples in flight in memory."""
    recomputes: bool


@dataclass(frozen=True, slots=True)
class Ladder:
    """The ways down from every downset to the empty one, on a number of devices."""

    ways: Sequence[Ways]
    """Of every downset but the empty one, by position."""
    devices: int

    def solve(self) -> list[Cut]:
        """Return the stages, first to last, that minimise the seconds per sample of the slowest.

        Among those it has the smallest count. Where nothing fits in memory, memory is left out and the stages that do
        not fit say so; empty where a stage can not even run.
        """
        return self.within(self.bottleneck())

    def within(self, fastest: float) -> list[Cut]:
        """Return the stages of `solve`, given the bottleneck."""
        if not np.isfinite(fastest):
            return []
        return self.fewest(fastest) or self._slower(fastest) or self.fewest(fastest, memory=False)

    def bottleneck(self) -> float:
        """Return the least seconds per sample of the slowest stage, memory left out.

        The recurrence of PipeDream (section 3.1) and Piper (section 4):

            best(D, k) = min over ways (D', d) of max(best(D', k - d), seconds(D - D', d))
        """
        best = self._table(0.0, np.inf)
        for at, ways in enumerate(self.ways, start=1):
            rest = self._rest(best, ways)
            best[at, self.devices :] = np.maximum(rest, ways.seconds[:, None]).min(axis=0, initial=np.inf)
        return float(best[-1, -1])

    def fewest(self, target: float, *, memory: bool = True) -> list[Cut]:
        """Return stages that take at most `target` seconds per sample, with the smallest count; empty if none.

        A smaller count behind a stage is never worse for it, in time nor in memory, so for one target the smallest
        count of every downset is all one needs to know. Piper keeps a table over all counts instead.
        """
        least = self._table(0, UNLIMITED)
        allowed = [ways.only(ways.seconds <= target * (1 + 1e-12)) for ways in self.ways]
        for at, ways in enumerate(allowed, start=1):
            least[at, self.devices :] = self._counts(least, ways, memory).min(axis=0, initial=UNLIMITED)
        if least[-1, -1] >= UNLIMITED:
            return []
        return self._way_down(least, allowed, memory)

    def _slower(self, fastest: float) -> list[Cut]:
        """Return the fastest stages that fit in memory, by bisection over the seconds of all ways."""
        seconds = np.unique(np.concatenate([ways.seconds for ways in self.ways]))
        seconds = seconds[(seconds > fastest) & np.isfinite(seconds)]
        found: list[Cut] = []
        low, high = 0, len(seconds)  # below `low` nothing fits, from `high` on something does
        while low < high:
            middle = (low + high) // 2 if found else high - 1
            trial = self.fewest(float(seconds[middle]))
            if trial:
                found = trial
                high = min(middle, int(np.searchsorted(seconds, max(cut.seconds for cut in trial))))
            else:
                low = middle + 1
        return found

    def _table(self, nothing: float, missing: float) -> Array:
        # Columns before `self.devices` stand for less than no devices.
        table = np.full((len(self.ways) + 1, 2 * self.devices + 1), missing)
        table[0, self.devices :] = nothing
        return table

    def _rest(self, table: Array, ways: Ways) -> Array:
        """Return, of shape [ways, devices + 1], what the table says of what each way leaves."""
        first = ways.below * table.shape[1] + self.devices - ways.devices
        return table.ravel()[first[:, None] + np.arange(self.devices + 1)]

    def _counts(self, least: Array, ways: Ways, memory: bool) -> Array:
        counts = self._rest(least, ways) + ways.weight[:, None]
        if memory:
            counts[counts > ways.limit[:, None]] = UNLIMITED
        return counts

    def _way_down(self, least: Array, allowed: Sequence[Ways], memory: bool) -> list[Cut]:
        at, devices = len(allowed), self.devices
        found: list[Cut] = []
        while at:
            ways = allowed[at - 1]
            counts = self._counts(least, ways, memory)[:, devices]
            # Of equal counts the fastest stage, then the one on the fewest devices.
            way = int(np.lexsort((ways.devices, ways.seconds, counts))[0])
            lower, used = int(ways.below[way]), int(ways.devices[way])
            fits = bool(counts[way] <= ways.limit[way])
            found.append(Cut(at, lower, used, float(ways.seconds[way]), fits, bool(ways.recomputes[way])))
            at, devices = lower, devices - used
        return found
