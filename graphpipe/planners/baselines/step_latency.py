"""Minimise DAPPLE's objective, the synchronous step of a sequential pipeline, by branch and bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.baselines.stage_cuts import Counts, StageCut
from graphpipe.planners.problem.limits import RANGES

Array = NDArray[np.float64]
_TOLERANCE = 1e-3
"""Relative distance from the optimum at which the search stops."""


@dataclass(frozen=True, slots=True)
class FirstStages:
    """The stages that can be split off downsets so that one downset remains. Of all arrays the shape is [stages]."""

    upper: NDArray[np.intp]
    """Positions of the downsets that they are split off, the largest first, and of equals ascending degrees."""
    degree: NDArray[np.intp]
    block: Array
    """Seconds of one micro-batch, forward and backward."""
    transfer: Array
    """Seconds of one micro-batch's activations and gradients over the cut before the stage."""
    all_reduce: Array
    """Seconds of the all-reduce, once per step."""
    limit: Counts
    """The most stages from this one to the end, itself included, at which it fits in memory."""

    def only(self, chosen: NDArray[np.intp] | slice) -> "FirstStages":
        """Return some of the stages."""
        return FirstStages(*(getattr(self, name)[chosen] for name in FirstStages.__slots__))


@dataclass(frozen=True, slots=True)
class StageSequence:
    """One sequence of stages."""

    cuts: list[StageCut]
    fill: float
    """Seconds of one micro-batch through all stages and transfers."""
    block: float
    """Seconds of one micro-batch at the slowest stage."""
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

    stages: Sequence[FirstStages]
    """The first stages of each downset but the whole, by the downset that remains."""
    devices: int
    micro_batches: int
    memory: bool
    """Whether stages must fit, assuming as many stages after them as there are devices left."""
    most_seconds: float = np.inf
    """The most seconds of a step: longer ones are not wanted."""

    def shortest(self) -> list[StageCut]:
        """Return the stages of the shortest step, to a tolerance; empty if nothing fits, or if it is too long.

        Branch and bound over the largest block and the exposed all-reduce allowed. For fixed limits a dynamic program
        finds the least fill, and the lower ends of the limits bound the rest.
        """
        high = (
            max(float(stages.block.max(initial=0.0)) for stages in self.stages),
            max(float(stages.all_reduce.max(initial=0.0)) for stages in self.stages),
        )
        best = self._least_fill(high)
        if best is None:
            return []
        low = (self._least_block(), 0.0)
        heap = [(_LimitRange(self._bound(low, best), 0, low, high), best)]
        for number in range(1, RANGES + 1):
            limits, sequence = heappop(heap)
            shortest = min(self._seconds(best), self.most_seconds)
            if limits.bound >= shortest * (1 - _TOLERANCE):
                break
            tight = self._tightened(limits, shortest)
            for part, inside in self._halves(tight, sequence, number):
                best = min(best, inside, key=self._seconds)
                if self._bound(part.high, inside) > part.bound + _TOLERANCE * self._seconds(best):
                    heappush(heap, (part, inside))
            if not heap:
                break
        return best.cuts if self._seconds(best) <= self.most_seconds else []

    def _least_block(self) -> float:
        """Return the least block of any sequence, memory aside."""
        least = np.full((len(self.stages) + 1, 2 * self.devices + 1), np.inf)
        least[-1, self.devices :] = 0.0
        windows = self._windows(least)
        for at in reversed(range(len(self.stages))):
            before = windows[self.stages[at].upper, self.devices - self.stages[at].degree]
            blocks = np.maximum(before, self.stages[at].block[:, None])
            least[at, self.devices :] = blocks.min(axis=0, initial=np.inf)
        return float(least[0, -1])

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
        halves = [(_LimitRange(self._bound(low, sequence), 2 * number, low, limits.high), sequence)]
        inside = self._least_fill(high)
        if inside is not None:
            halves.append((_LimitRange(self._bound(limits.low, inside), 2 * number + 1, limits.low, high), inside))
        return halves

    def _bound(self, corner: tuple[float, float], sequence: StageSequence) -> float:
        return (self.micro_batches - 1) * corner[0] + sequence.fill + corner[1]

    def _seconds(self, sequence: StageSequence) -> float:
        return (self.micro_batches - 1) * sequence.block + sequence.fill + sequence.exposed

    def _least_fill(self, high: tuple[float, float]) -> StageSequence | None:
        """Return the sequence of least fill with blocks up to `block` and all-reduce i up to `exposed + i block`.

        least[D, k, i]: seconds of the stages before downset D, which are i stages on k devices. The largest i also
        stands for more stages: every all-reduce is hidden by then, or no device is left.
        """
        block, exposed = high
        allowed = [stages.only(np.flatnonzero(stages.block <= block)) for stages in self.stages]
        longest = max(float(stages.all_reduce.max(initial=0.0)) for stages in allowed)
        hidden: Array = exposed + block * np.arange(min(self.devices, len(allowed)) + 1, dtype=np.float64)
        hidden = hidden[: 1 + int(np.count_nonzero(hidden < longest))]
        # Columns before `self.devices` are for negative numbers of devices.
        least = np.full((len(allowed) + 1, 2 * self.devices + 1, len(hidden)), np.inf)
        least[-1, self.devices, 0] = 0.0
        windows = np.moveaxis(self._windows(least), -1, 2)
        previous = np.zeros((len(allowed), self.devices + 1, len(hidden), 2), dtype=np.intp)
        for at in reversed(range(len(allowed))):
            if len(allowed[at].block):
                fills = self._fills(windows, allowed[at], hidden)
                least[at, self.devices :], previous[at] = _with_one_more(fills)
        whole = least[0, self.devices :]
        return self._backtrack(whole, previous, allowed) if np.isfinite(whole).any() else None

    def _fills(self, windows: Array, stages: FirstStages, hidden: Array) -> Array:
        """Return, of shape [stages, devices, stages before], the fill with each of these stages at the end."""
        before = windows[stages.upper, self.devices - stages.degree]
        fills = before + (stages.block + stages.transfer)[:, None, None]
        np.copyto(fills, np.inf, where=(stages.all_reduce[:, None] > hidden)[:, None, :])
        if self.memory:  # as many stages may follow as devices are left
            behind = np.arange(self.devices + 1, 0, -1)
            np.copyto(fills, np.inf, where=(stages.limit[:, None] < behind)[:, :, None])
        return fills

    def _windows(self, table: Array) -> Array:
        """Return a view of a table by downset and by devices from -D to 0, with the entries for 0 to D more at the end.

        What precedes stages, on 0 to D devices with them, is at their upper downset and minus their degree.
        """
        return np.lib.stride_tricks.sliding_window_view(table, self.devices + 1, axis=1)

    def _backtrack(self, whole: Array, previous: NDArray[np.intp], allowed: Sequence[FirstStages]) -> StageSequence:
        devices, before = (int(axis) for axis in np.unravel_index(int(whole.argmin()), whole.shape))
        fill, at = float(whole[devices, before]), 0
        chosen: list[tuple[int, FirstStages, int]] = []
        while at < len(allowed):
            row, before = previous[at, devices, before].tolist()
            chosen.append((at, allowed[at], row))
            at, devices = int(allowed[at].upper[row]), devices - int(allowed[at].degree[row])
        cuts = [
            StageCut(
                int(stages.upper[row]),
                lower,
                int(stages.degree[row]),
                float(stages.block[row]),
                bool(stages.limit[row] > number),
                recomputes=False,
            )
            for number, (lower, stages, row) in enumerate(chosen)
        ]
        cuts.reverse()
        block = max(cut.seconds for cut in cuts)
        reduces = (float(stages.all_reduce[row]) for _, stages, row in reversed(chosen))
        exposed = max(0.0, *(seconds - stage * block for stage, seconds in enumerate(reduces)))
        return StageSequence(cuts, fill, block, exposed)


def _with_one_more(fills: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the least fill by devices and number of stages, and which stage is the last, with how many before it.

    Args:
        fills: [stages, devices, stages before].
    """
    last, stages_before = fills.argmin(axis=0), np.arange(fills.shape[2])
    rows = np.arange(len(last))[:, None]
    least, before = fills[last, rows, stages_before], np.broadcast_to(stages_before, last.shape)
    if len(stages_before) > 1:
        before = before - 1  # before one more; of equals at the end, the fewer
        before[least[:, -1] < least[:, -2], -1] += 1
        least, last = least[rows, before], last[rows, before]
        least[:, 0] = np.inf
    return least, np.stack([last, before], axis=-1)
