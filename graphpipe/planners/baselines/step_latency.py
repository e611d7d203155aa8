"""Minimise DAPPLE's objective, the synchronous step of a sequential pipeline, by branch and bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.baselines.stage_cuts import StageCut

Array = NDArray[np.float64]
_TOLERANCE = 1e-3
"""Relative distance from the optimum at which the search stops."""
MOST_RANGES = 200
"""Most ranges to examine. With fewer micro-batches than stages, larger blocks can pay by hiding all-reduces, which the
bounds ignore."""


@dataclass(frozen=True, slots=True)
class DegreeCuts:
    """The cuts that split the first stage off one downset with one degree; arrays of shape [cuts]."""

    degree: int
    below: NDArray[np.intp]
    """Position of the smaller downset that remains; each at most once."""
    block: Array
    """Seconds of one micro-batch, forward and backward."""
    transfer: float
    """Seconds of one micro-batch's activations and gradients over the cut before the stage."""
    all_reduce: Array
    """Seconds, once per step."""
    limit: NDArray[np.int64]
    """The most stages from this one to the end, itself included, at which it fits in memory."""


@dataclass(frozen=True, slots=True)
class StageSequence:
    """One sequence of stages."""

    cuts: list[StageCut]
    fill: float
    """Seconds of one micro-batch through all stages and transfers."""
    block: float
    """Of the slowest stage."""
    exposed: float
    """Seconds of all-reduce that the drain does not hide."""


@dataclass(frozen=True, slots=True, order=True)
class _LimitRange:
    """The sequences whose block and exposed seconds lie in these ranges; `bound` is a lower bound on their steps."""

    bound: float
    number: int
    low: tuple[float, float]
    high: tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepLatency:
    """One step of M micro-batches: (M - 1) block + fill + exposed seconds."""

    cuts: Sequence[Sequence[DegreeCuts]]
    """Of every downset but the empty one, by degree."""
    devices: int
    micro_batches: int
    memory: bool
    """Whether stages must fit, assuming as many stages after them as there are devices left."""
    ranges: int = MOST_RANGES
    """Most ranges of limits to examine."""

    def shortest(self) -> list[StageCut]:
        """Return the stages of the shortest step, to a tolerance; empty if nothing fits.

        Branch and bound over the largest block and the exposed all-reduce allowed. For fixed limits a dynamic program
        finds the least fill, and the lower ends of the limits bound the rest.
        """
        every = [degree_cuts for cuts in self.cuts for degree_cuts in cuts if len(degree_cuts.below)]
        high = (
            max(float(degree_cuts.block.max()) for degree_cuts in every),
            max(float(degree_cuts.all_reduce.max()) for degree_cuts in every),
        )
        best = self._least_fill(high)
        if best is None:
            return []
        heap = [(_LimitRange(best.fill, 0, (0.0, 0.0), high), best)]
        for number in range(1, self.ranges + 1):
            limits, sequence = heappop(heap)
            if limits.bound >= self._seconds(best) * (1 - _TOLERANCE):
                break
            tight = self._tightened(limits, self._seconds(best))
            for part, inside in self._halves(tight, sequence, number):
                best = min(best, inside, key=self._seconds)
                if self._bound(part.high, inside) > part.bound + _TOLERANCE * self._seconds(best):
                    heappush(heap, (part, inside))
            if not heap:
                break
        return best.cuts

    def _tightened(self, limits: _LimitRange, seconds: float) -> _LimitRange:
        """Return the part of the limits in which less than `seconds` is possible."""
        spare = seconds - limits.bound
        block = limits.low[0] + spare / (self.micro_batches - 1) if self.micro_batches > 1 else np.inf
        return replace(limits, high=(min(limits.high[0], block), min(limits.high[1], limits.low[1] + spare)))

    def _halves(
        self, limits: _LimitRange, sequence: StageSequence, number: int
    ) -> list[tuple[_LimitRange, StageSequence]]:
        """Return the two halves of the limits, each with its sequence of least fill."""
        # Split near the sequence's own values, but not at the edge of the limits, so that the ranges shrink.
        spans = [
            min(max(taken - here, (there - here) / 8), there - here)
            for here, there, taken in zip(limits.low, limits.high, (sequence.block, sequence.exposed), strict=True)
        ]
        if sequence.exposed > limits.high[1]:  # Allowed only because larger blocks could hide it.
            spans[0] = limits.high[0] - limits.low[0]
        side = int(spans[1] > max(1, self.micro_batches - 1) * spans[0])
        middle = limits.low[side] + spans[side] / 2
        low = (middle, limits.low[1]) if side == 0 else (limits.low[0], middle)
        high = (middle, limits.high[1]) if side == 0 else (limits.high[0], middle)
        found = [(_LimitRange(self._bound(low, sequence), 2 * number, low, limits.high), sequence)]
        inside = self._least_fill(high)
        if inside is not None:
            found.append((_LimitRange(self._bound(limits.low, inside), 2 * number + 1, limits.low, high), inside))
        return found

    def _bound(self, corner: tuple[float, float], sequence: StageSequence) -> float:
        return (self.micro_batches - 1) * corner[0] + sequence.fill + corner[1]

    def _seconds(self, sequence: StageSequence) -> float:
        return (self.micro_batches - 1) * sequence.block + sequence.fill + sequence.exposed

    def _least_fill(self, high: tuple[float, float]) -> StageSequence | None:
        """Return the sequence of least fill with blocks up to `block` and all-reduce i up to `exposed + i block`.

        least[D, k, i]: seconds of the stages before downset D, which are i stages on k devices.
        """
        block, exposed = high
        most = min(self.devices, len(self.cuts))
        least = np.full((len(self.cuts) + 1, self.devices + 1, most + 1), np.inf)
        least[-1, 0, 0] = 0.0
        previous = np.zeros(least.shape, dtype=np.intp)
        hidden: Array = exposed + block * np.arange(most, dtype=np.float64)
        for at in reversed(range(1, len(least))):
            for number, degree_cuts in enumerate(self.cuts[at - 1]):
                chosen = np.flatnonzero(degree_cuts.block <= block)
                before = least[at, : self.devices + 1 - degree_cuts.degree, :-1]
                if not len(chosen) or not np.isfinite(before).any():
                    continue
                trial = before + (degree_cuts.block[chosen] + degree_cuts.transfer)[:, None, None]
                trial[self._refused(degree_cuts, chosen, hidden)] = np.inf
                there = (_rows(degree_cuts.below[chosen]), slice(degree_cuts.degree, None), slice(1, None))
                shorter = trial < least[there]
                previous[there] = np.where(shorter, at * len(self.cuts[0]) + number, previous[there])
                least[there] = np.minimum(trial, least[there])
        return self._backtrack(least, previous) if np.isfinite(least[0]).any() else None

    def _refused(self, degree_cuts: DegreeCuts, chosen: NDArray[np.intp], hidden: Array) -> NDArray[np.bool_]:
        """Return, of shape [cuts, devices before, stages before], which exceed the all-reduce limit or memory."""
        refused = (degree_cuts.all_reduce[chosen, None] > hidden)[:, None, :]
        if not self.memory:
            return np.broadcast_to(refused, (len(chosen), self.devices + 1 - degree_cuts.degree, len(hidden)))
        behind = np.arange(self.devices - degree_cuts.degree + 1, 0, -1)
        return refused | (degree_cuts.limit[chosen, None] < behind)[:, :, None]

    def _backtrack(self, least: Array, previous: NDArray[np.intp]) -> StageSequence:
        devices, stages = (int(axis) for axis in np.unravel_index(int(least[0].argmin()), least[0].shape))
        fill, lower = float(least[0, devices, stages]), 0
        cuts: list[StageCut] = []
        reduces: list[float] = []
        for stage in reversed(range(stages)):
            upper, number = divmod(int(previous[lower, devices, stage + 1]), len(self.cuts[0]))
            degree_cuts = self.cuts[upper - 1][number]
            row = int(np.flatnonzero(degree_cuts.below == lower)[0])
            fits = bool(degree_cuts.limit[row] >= stages - stage)
            cuts.insert(
                0, StageCut(upper, lower, degree_cuts.degree, float(degree_cuts.block[row]), fits, recomputes=False)
            )
            reduces.insert(0, float(degree_cuts.all_reduce[row]))
            lower, devices = upper, devices - degree_cuts.degree
        block = max(cut.seconds for cut in cuts)
        exposed = max(0.0, *(seconds - stage * block for stage, seconds in enumerate(reduces)))
        return StageSequence(cuts, fill, block, exposed)


def _rows(positions: NDArray[np.intp]) -> "slice | NDArray[np.intp]":
    """Return ascending positions as a slice if they follow each other, because a slice is not copied."""
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == len(positions) else positions
