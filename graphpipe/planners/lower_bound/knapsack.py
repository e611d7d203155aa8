"""Pricing step: the highest-value load of one device, by a knapsack in whole parts of the time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
GRID = 2048
"""Number of parts of the longest time."""
_BELOW = 1 - 1e-9
"""Factor that keeps rounded seconds from exceeding the exact ones."""


@dataclass(frozen=True, slots=True)
class ChainLoads:
    """Stretches of a chain, of which a device may take one from each of `copies` equal chains."""

    copies: int
    start: Indices
    stop: Indices
    """End of the priced positions, which are start to stop - 1."""
    share: Array
    """Share of the operators that the device holds, 1 / degree."""
    seconds: Array


@dataclass(frozen=True, slots=True)
class GridLoads:
    """The loads of a chain in whole parts of the time."""

    loads: ChainLoads
    parts: Indices
    """Numbers of parts, in ascending order."""
    firsts: Indices
    """The first row of each number of parts."""


@dataclass(frozen=True, slots=True)
class KnapsackChoice:
    """One choice of a knapsack: for each capacity the number of the chosen row, or -1."""

    grid_loads: GridLoads
    rows: Indices
    chosen: Indices


def on_grid(loads: ChainLoads, step: float) -> GridLoads:
    """Return the loads in parts of `step` seconds, without loads longer than `GRID` parts."""
    parts = np.floor(loads.seconds / step * _BELOW)
    order = np.argsort(parts, kind="stable")
    order = order[parts[order] <= GRID]
    kept = ChainLoads(loads.copies, loads.start[order], loads.stop[order], loads.share[order], loads.seconds[order])
    whole = parts[order].astype(np.intp)
    return GridLoads(kept, whole, np.flatnonzero(np.diff(whole, prepend=-1)))


def knapsack(device_loads: Sequence[GridLoads], prices: Array) -> tuple[Array, list[KnapsackChoice]]:
    """Return the highest price that fits into 0 to GRID parts, and the choices that reach it."""
    summed = np.concatenate(([0.0], np.cumsum(prices)))
    best, choices = np.zeros(GRID + 1), list[KnapsackChoice]()
    for grid_loads in device_loads:
        loads = grid_loads.loads
        if not len(grid_loads.parts):
            continue
        value = (summed[loads.stop] - summed[loads.start]) * loads.share
        rows = _worthwhile(grid_loads, value)
        if not len(rows):
            continue
        left = np.arange(GRID + 1) - grid_loads.parts[rows][:, None]
        for _ in range(loads.copies):
            with_row = np.where(left >= 0, best[np.maximum(left, 0)], -np.inf) + value[rows][:, None]
            first = with_row.argmax(axis=0)
            top = with_row[first, np.arange(GRID + 1)]
            choices.append(KnapsackChoice(grid_loads, rows, np.where(top > best, first, -1)))
            best = np.maximum(best, top)
    return best, choices


def _worthwhile(grid_loads: GridLoads, value: Array) -> Indices:
    """Return the best_rows row of each number of parts, if dearer than all shorter ones."""
    groups = np.split(np.arange(len(value)), grid_loads.firsts[1:])
    best_rows = np.array([group[value[group].argmax()] for group in groups], dtype=np.intp)
    before = np.concatenate(([0.0], np.maximum.accumulate(value[best_rows])[:-1]))
    return best_rows[value[best_rows] > before]


def best_load(choices: Sequence[KnapsackChoice], capacity: int, positions: int) -> tuple[int, Array]:
    """Return the parts and the shares of the best load of a knapsack for a capacity."""
    left, share = capacity, np.zeros(positions)
    for choice in reversed(choices):
        chosen = choice.chosen[left]
        if chosen >= 0:
            row, loads = choice.rows[chosen], choice.grid_loads.loads
            share[loads.start[row] : loads.stop[row]] += loads.share[row]
            left -= int(choice.grid_loads.parts[row])
    return capacity - left, share
