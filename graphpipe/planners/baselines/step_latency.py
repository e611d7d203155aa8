"""The shortest synchronous step of a sequential pipeline: DAPPLE's objective, minimised by branch and bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.baselines.stage_cuts import Cut

Array = NDArray[np.float64]
_TOLERANCE = 1e-3
"""Relative: how far from the optimum the search may stop."""
_BOXES = 200
"""After so many it stops anyway: with fewer micro-batches than stages, larger blocks can pay by hiding all-reduces,
which the bounds do not see."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The ways to cut the first stage off one downset with one degree; arrays of shape [ways]."""

    degree: int
    below: NDArray[np.intp]
    """Position of the smaller downset that is left; each at most once."""
    block: Array
    """Seconds of one micro-batch, forward and backward."""
    transfer: float
    """Seconds of one micro-batch's activations and gradients over the cut before the stage."""
    all_reduce: Array
    """Seconds, once per step."""
    limit: NDArray[np.int64]
    """The most stages, itself included, from this one to the end at which it fits in memory."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One sequence of stages."""

    cuts: list[Cut]
    fill: float
    """Seconds of one micro-batch through all stages and transfers."""
    block: float
    """Of the slowest stage."""
    exposed: float
    """Seconds of all-reduce that the drain does not hide."""


@dataclass(frozen=True, slots=True, order=True)
class _Box:
    """The walks whose block and exposed seconds lie in these ranges; none takes less than `bound`."""

    bound: float
    number: int
    low: tuple[float, float]
    high: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of M micro-batches: (M - 1) block + fill + exposed seconds."""

    lines: Sequence[Sequence[Lines]]
    """Of every downset but the empty one, by degree."""
    devices: int
    micro_batches: int
    memory: bool
    """Whether stages must fit, with as many stages behind them as there are devices left."""

    def shortest(self) -> list[Cut]:
        """Return the stages of the shortest step, to a tolerance; empty if none fits.

        Branch and bound over the largest block and the exposed all-reduce allowed: for both limits fixed, the least
        fill is a dynamic programme, and the limits' lower ends bound the rest.
        """
        every = [line for lines in self.lines for line in lines if len(line.below)]
        high = (max(float(line.block.max()) for line in every), max(float(line.all_reduce.max()) for line in every))
        best = self._least_fill(high)
        if best is None:
            return []
        heap = [(_Box(best.fill, 0, (0.0, 0.0), high), best)]
        for number in range(1, _BOXES + 1):
            box, walk = heappop(heap)
            if box.bound >= self._seconds(best) * (1 - _TOLERANCE):
                break
            tight = self._tightened(box, self._seconds(best))
            for part, inside in self._halves(tight, walk, number):
                best = min(best, inside, key=self._seconds)
                if self._bound(part.high, inside) > part.bound + _TOLERANCE * self._seconds(best):
                    heappush(heap, (part, inside))
            if not heap:
                break
        return best.cuts

    def _tightened(self, box: _Box, seconds: float) -> _Box:
        """Return the part of a box where less than `seconds` is possible."""
        spare = seconds - box.bound
        block = box.low[0] + spare / (self.micro_batches - 1) if self.micro_batches > 1 else np.inf
        return replace(box, high=(min(box.high[0], block), min(box.high[1], box.low[1] + spare)))

    def _halves(self, box: _Box, walk: Walk, number: int) -> list[tuple[_Box, Walk]]:
        """Return the two halves of a box, each with its walk of least fill."""
        # Near the walk's own place in the box, but never at its very edge, so that boxes shrink.
        spans = [
            min(max(taken - here, (there - here) / 8), there - here)
            for here, there, taken in zip(box.low, box.high, (walk.block, walk.exposed), strict=True)
        ]
        if walk.exposed > box.high[1]:  # Allowed only because larger blocks would hide it.
            spans[0] = box.high[0] - box.low[0]
        side = int(spans[1] > max(1, self.micro_batches - 1) * spans[0])
        middle = box.low[side] + spans[side] / 2
        low = (middle, box.low[1]) if side == 0 else (box.low[0], middle)
        high = (middle, box.high[1]) if side == 0 else (box.high[0], middle)
        found = [(_Box(self._bound(low, walk), 2 * number, low, box.high), walk)]
        inside = self._least_fill(high)
        if inside is not None:
            found.append((_Box(self._bound(box.low, inside), 2 * number + 1, box.low, high), inside))
        return found

    def _bound(self, corner: tuple[float, float], walk: Walk) -> float:
        return (self.micro_batches - 1) * corner[0] + walk.fill + corner[1]

    def _seconds(self, walk: Walk) -> float:
        return (self.micro_batches - 1) * walk.block + walk.fill + walk.exposed

    def _least_fill(self, high: tuple[float, float]) -> Walk | None:
        """Return the walk of least fill in which no block exceeds `block`, no all-reduce i `exposed + i block`.

        least[D, k, i]: seconds of the stages before downset D, which are i stages on k devices.
        """
        block, exposed = high
        most = min(self.devices, len(self.lines))
        least = np.full((len(self.lines) + 1, self.devices + 1, most + 1), np.inf)
        least[-1, 0, 0] = 0.0
        came = np.zeros(least.shape, dtype=np.intp)
        hidden: Array = exposed + block * np.arange(most, dtype=np.float64)
        for at in reversed(range(1, len(least))):
            for number, line in enumerate(self.lines[at - 1]):
                chosen = np.flatnonzero(line.block <= block)
                trial = (
                    least[at, : self.devices + 1 - line.degree, :-1]
                    + (line.block[chosen] + line.transfer)[:, None, None]
                )
                trial[self._refused(line, chosen, hidden)] = np.inf
                there = (line.below[chosen], slice(line.degree, None), slice(1, None))
                came[there] = np.where(trial < least[there], at * len(self.lines[0]) + number, came[there])
                least[there] = np.minimum(trial, least[there])
        return self._walk(least, came) if np.isfinite(least[0]).any() else None

    def _refused(self, line: Lines, chosen: NDArray[np.intp], hidden: Array) -> NDArray[np.bool_]:
        """Return, of shape [ways, devices before, stages before], what exceeds the all-reduce limit or memory."""
        refused = (line.all_reduce[chosen, None] > hidden)[:, None, :]
        behind = np.arange(self.devices - line.degree + 1, 0, -1)
        crowded = (line.limit[chosen, None] < behind)[:, :, None] & self.memory
        return refused | crowded

    def _walk(self, least: Array, came: NDArray[np.intp]) -> Walk:
        devices, stages = (int(axis) for axis in np.unravel_index(int(least[0].argmin()), least[0].shape))
        fill, lower = float(least[0, devices, stages]), 0
        cuts: list[Cut] = []
        reduces: list[float] = []
        for stage in reversed(range(stages)):
            upper, number = divmod(int(came[lower, devices, stage + 1]), len(self.lines[0]))
            line = self.lines[upper - 1][number]
            row = int(np.flatnonzero(line.below == lower)[0])
            fits = bool(line.limit[row] >= stages - stage)
            cuts.insert(0, Cut(upper, lower, line.degree, float(line.block[row]), fits, recomputes=False))
            reduces.insert(0, float(line.all_reduce[row]))
            lower, devices = upper, devices - line.degree
        block = max(cut.seconds for cut in cuts)
        exposed = max(0.0, *(seconds - stage * block for stage, seconds in enumerate(reduces)))
        return Walk(cuts, fill, block, exposed)
