"""Cut a downset into stages by a dynamic program, which the baseline planners share.

    downset     {a b c d e}  ->  {c d e}  ->  {e}  ->  {}        every arrow is a *cut*: it splits the first
    stage             a b          c d         e                 stage off, on some devices
    count              3            2          1                 stages from here to the end

A stage keeps more samples in flight if more stages follow, so a cut is only allowed up to a certain count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int32]
Indices = NDArray[np.intp]
_Entry = TypeVar("_Entry", np.int32, np.float64)
UNLIMITED = 2**30
"""A count, or a limit on it, that is never reached. One more still has 32 bits."""


@dataclass(frozen=True, slots=True)
class StageCuts:
    """The cuts that split the first stage off one downset; all arrays have the shape [cuts]."""

    below: Indices
    """Position of the smaller downset that remains."""
    devices: Indices
    seconds: Array
    """Seconds of the stage, per sample."""
    weight: Counts
    """The stage's contribution to the count."""
    limit: Counts
    """The largest count, the stage itself included, at which the stage fits in memory."""
    recomputes: NDArray[np.bool_]
    """Whether the stage recomputes in full, which takes longer and allows a larger count."""

    @staticmethod
    def concatenate(cuts: Sequence["StageCuts"]) -> "StageCuts":
        """Return the cuts of several values in one."""
        return StageCuts(*(np.concatenate([getattr(part, name) for part in cuts]) for name in StageCuts.__slots__))

    def only(self, chosen: NDArray[np.bool_] | Indices | slice) -> "StageCuts":
        """Return some of the cuts."""
        return StageCuts(*(getattr(self, name)[chosen] for name in StageCuts.__slots__))


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage of a solution: the operators of downset `upper` that are not in downset `lower`."""

    upper: int
    lower: int
    devices: int
    seconds: float
    fits: bool
    """Whether the stage's samples in flight fit in memory."""
    recomputes: bool


# No slots: what is found once is a cached property.
@dataclass(frozen=True)
class BottleneckSearch:
    """The search for the stages of the fastest bottleneck, over the cuts of every downset."""

    cuts: Sequence[StageCuts]
    """Cuts of every downset but the empty one, by position."""
    devices: int

    def solve(self) -> list[StageCut]:
        """Return the stages, first to last, that minimise the seconds per sample of the slowest.

        Of equal solutions, returns one with the smallest count. If nothing fits in memory, memory is ignored, and
        `StageCut.fits` is False for the stages that do not fit. The result is empty if some stage cannot run at all.
        """
        return self.within(self.bottleneck())

    def within(self, fastest: float) -> list[StageCut]:
        """Return the stages of `solve`, given the bottleneck."""
        if not np.isfinite(fastest):
            return []
        fitting = self.may_fit and (self.fewest(fastest) or self._slower(fastest))
        return fitting or self.fewest(fastest, memory=False)

    def bottleneck(self) -> float:
        """Return the least seconds per sample of the slowest stage, ignoring memory.

        The recurrence of PipeDream (section 3.1) and Piper (section 4):

            best(D, k) = min over cuts (D', d) of max(best(D', k - d), seconds(D - D', d))
        """
        best = self._table(np.float64(0.0), np.float64(np.inf))
        windows = self._windows(best)
        for at, cuts in enumerate(self.cuts, start=1):
            rest = self._rest(windows, cuts)
            best[at, self.devices :] = np.maximum(rest, cuts.seconds[:, None]).min(axis=0, initial=np.inf)
        return float(best[-1, -1])

    def fewest(self, target: float, *, memory: bool = True) -> list[StageCut]:
        """Return stages that take at most `target` seconds per sample, with the smallest count; empty if none.

        A smaller count after a stage is never worse for it in time or memory, so for one target the smallest count of
        every downset suffices. Piper keeps a table over all counts instead.
        """
        least = self._table(np.int32(0), np.int32(UNLIMITED))
        most = target * (1 + 1e-12)
        fast = [int(cuts.seconds.searchsorted(most, side="right")) for cuts in self._fastest_first]
        windows = self._windows(least)
        for at, (cuts, count) in enumerate(zip(self._fastest_first, fast, strict=True), start=1):
            if count:
                least[at, self.devices :] = self._counts(windows, cuts, count, memory).min(axis=0)
        if least[-1, -1] >= UNLIMITED:
            return []
        allowed = [cuts.only(slice(count)) for cuts, count in zip(self._fastest_first, fast, strict=True)]
        return self._backtrack(windows, allowed, memory)

    @cached_property
    def may_fit(self) -> bool:
        """Whether stages may fit in memory, by the fewest devices and the smallest count, each on its own."""
        devices, counts = np.zeros((2, len(self.cuts) + 1), np.int32)
        for at, cuts in enumerate(self.cuts, start=1):
            count = counts[cuts.below] + cuts.weight
            fits = count <= cuts.limit
            counts[at] = count[fits].min(initial=UNLIMITED)
            devices[at] = (devices[cuts.below] + cuts.devices)[fits].min(initial=UNLIMITED)
        return bool(devices[-1] <= self.devices)

    @cached_property
    def _fastest_first(self) -> list[StageCuts]:
        """The cuts of every downset by seconds, so that those that are fast enough are a view of the first ones."""
        return [cuts.only(np.argsort(cuts.seconds, kind="stable")) for cuts in self.cuts]

    def _slower(self, fastest: float) -> list[StageCut]:
        """Return the fastest stages that fit in memory, by bisection over the seconds of all cuts."""
        seconds = np.unique(np.concatenate([cuts.seconds for cuts in self.cuts]))
        seconds = seconds[(seconds > fastest) & np.isfinite(seconds)]
        best_cuts: list[StageCut] = []
        low, high = 0, len(seconds)  # nothing fits below `low`; a solution exists at `high` and above
        while low < high:
            middle = (low + high) // 2 if best_cuts else high - 1
            trial = self.fewest(float(seconds[middle]))
            if trial:
                best_cuts = trial
                high = min(middle, int(np.searchsorted(seconds, max(cut.seconds for cut in trial))))
            else:
                low = middle + 1
        return best_cuts

    def _table(self, nothing: _Entry, missing: _Entry) -> NDArray[_Entry]:
        # Columns before `self.devices` are for negative numbers of devices.
        table = np.full((len(self.cuts) + 1, 2 * self.devices + 1), missing)
        table[0, self.devices :] = nothing
        return table

    def _windows(self, table: NDArray[_Entry]) -> NDArray[_Entry]:
        """Return a view of a table, of shape [downsets, first columns, devices + 1]."""
        return np.lib.stride_tricks.sliding_window_view(table, self.devices + 1, axis=1)

    def _rest(self, windows: NDArray[_Entry], cuts: StageCuts) -> NDArray[_Entry]:
        """Return, of shape [cuts, devices + 1], the table entries of the downset that each cut leaves."""
        return windows[cuts.below, self.devices - cuts.devices]

    def _counts(self, windows: Counts, cuts: StageCuts, first: int, memory: bool) -> Counts:
        """Return, of shape [first, devices + 1], the counts after each of the first cuts."""
        counts = windows[cuts.below[:first], self.devices - cuts.devices[:first]]
        counts += cuts.weight[:first, None]
        if memory:
            np.putmask(counts, counts > cuts.limit[:first, None], UNLIMITED)
        return counts

    def _backtrack(self, windows: Counts, allowed: Sequence[StageCuts], memory: bool) -> list[StageCut]:
        at, devices = len(allowed), self.devices
        chain: list[StageCut] = []
        while at:
            cuts = allowed[at - 1]
            counts = self._counts(windows, cuts, len(cuts.below), memory)[:, devices]
            # Of equal counts the fastest stage, then the one on the fewest devices.
            chosen = int(np.lexsort((cuts.devices, cuts.seconds, counts))[0])
            lower, used = int(cuts.below[chosen]), int(cuts.devices[chosen])
            fits = bool(counts[chosen] <= cuts.limit[chosen])
            chain.append(StageCut(at, lower, used, float(cuts.seconds[chosen]), fits, bool(cuts.recomputes[chosen])))
            at, devices = lower, devices - used
        return chain
