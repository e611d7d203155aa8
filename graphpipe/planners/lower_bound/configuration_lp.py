"""A lower bound from the loads of single devices: a configuration linear programme, solved by column generation.

Give every operator a price. A device whose stage has degree d holds 1/d of each operator of the stage, so over all
devices of a plan the prices sum to the price of all operators. Suppose that a device can hold a price of at most K
within c seconds. If K times the number of devices is less than the price of all operators, every plan takes longer than
c. This holds for any prices. The best prices are the dual of packing fractions of loads, a linear programme with a
column per load. A knapsack over `GRID` equal parts of the time generates the columns that are needed (Gilmore and
Gomory, A linear programming approach to the cutting-stock problem, Operations Research 9, 1961).

The knapsack rounds seconds down, and relaxes a stage to an unbroken stretch of every chain. Its value is therefore
never below the true maximum, so the bound is valid whenever the search stops and however accurate the solver is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.lower_bound.knapsack import GRID, ChainLoads, GridLoads, best_load, knapsack, on_grid

Array = NDArray[np.float64]
_CLOSE = 1.002
"""The search ends if the price of all operators is at most this, because little more can be proven."""
_SURE = 1 - 1e-9
_EFFORT = 100_000_000
"""Approximate number of additions in all knapsacks."""
_CALL = 20
"""The overhead of one knapsack item group, in rows."""
_MOST_ROUNDS = 150


@dataclass(frozen=True, slots=True)
class Packing:
    """The loads that devices may have.

    Every priced position represents `copies` operators, at the same position of equal chains.
    """

    copies: Array
    """[positions]: number of operators that each position represents."""
    loads: tuple[tuple[int, tuple[ChainLoads, ...]], ...]
    """The chain loads that one device of a kind may combine; a kind may have several alternatives."""
    devices: Array
    """[kinds]: number of devices."""


def packing_bound(packing: Packing, least: float, effort: float = 1.0) -> float:
    """Return a lower bound on the seconds in which devices can hold all operators, at least `least`.

    Args:
        packing: the loads that devices may have.
        least: a known bound, above 0.
        effort: 1 ends within half a second; a larger value may prove a higher bound.
    """
    rounds, bound = int(_MOST_ROUNDS * effort), least
    while rounds > 0:
        grid = _Grid.of(packing, 1.5 * bound)
        before, (bound, used) = bound, grid.raised(bound, rounds, _EFFORT * effort)
        rounds -= used
        if bound < grid.step * GRID or bound <= before:
            return bound
    return bound


@dataclass(frozen=True, slots=True)
class _Grid:
    """A packing on a grid of seconds."""

    packing: Packing
    loads: tuple[tuple[int, tuple[GridLoads, ...]], ...]
    step: float
    """Seconds of one part."""

    @staticmethod
    def of(packing: Packing, longest: float) -> "_Grid":
        step = longest / GRID
        loads = tuple(
            (kind, tuple(on_grid(loads, step) for loads in device_loads)) for kind, device_loads in packing.loads
        )
        return _Grid(packing, loads, step)

    def raised(self, bound: float, most_rounds: int, most_effort: float) -> tuple[float, int]:
        """Return the bound that the prices prove, and the number of rounds."""
        effort = GRID * sum(
            (len(f.firsts) + _CALL) * f.loads.copies for _, device_loads in self.loads for f in device_loads
        )
        rounds = min(most_rounds, int(most_effort / max(effort, 1)))
        columns = _Columns.singles(self)
        done = max(int(bound / self.step), columns.least_parts)
        for used in range(rounds):
            if done >= GRID:
                return max(bound, GRID * self.step), used
            prices = columns.prices(self.packing, done)
            if self.packing.copies @ prices <= _CLOSE:
                return max(bound, done * self.step), used
            most = np.zeros((len(self.packing.devices), GRID + 1))
            for kind, device_loads in self.loads:
                values, choices = knapsack(device_loads, prices)
                most[kind] = np.maximum(most[kind], values)
                columns.add(kind, *best_load(choices, done, len(prices)))
            # A device with less than done + 1 parts of time has at most `done` whole parts.
            proven = np.flatnonzero(self.packing.devices @ most < self.packing.copies @ prices * _SURE)
            done = max(done, int(proven[-1]) + 1 if len(proven) else 0)
        return max(bound, min(done, GRID) * self.step), rounds or 1


@dataclass(slots=True)
class _Columns:
    """The loads generated so far: kind of device, parts of time, share of every position."""

    kinds: list[int]
    parts: list[int]
    shares: list[Array]

    @staticmethod
    def singles(grid: _Grid) -> "_Columns":
        """Return the loads of a single operator."""
        columns = _Columns([], [], [])
        for kind, device_loads in grid.loads:
            for grid_loads in device_loads:
                loads = grid_loads.loads
                for row in np.flatnonzero(loads.stop - loads.start == 1):
                    share = np.zeros(len(grid.packing.copies))
                    share[loads.start[row]] = loads.share[row]
                    columns.add(kind, int(grid_loads.parts[row]), share)
        return columns

    def add(self, kind: int, parts: int, share: Array) -> None:
        """Add one load."""
        self.kinds.append(kind)
        self.parts.append(parts)
        self.shares.append(share)

    @property
    def least_parts(self) -> int:
        """The fewest parts in which every operator is in some load; `GRID + 1` if one is not in any load."""
        parts, shares = np.array(self.parts), np.array(self.shares)
        return int(np.where(shares > 0, parts[:, None], GRID + 1).min(axis=0).max())

    def prices(self, packing: Packing, capacity: int) -> Array:
        """Return the prices that maximise the price of all operators if all devices together hold at most 1.

        Args:
            packing: the loads that devices may have.
            capacity: parts of time of each device, at least `least_parts`.
        """
        from scipy.optimize import linprog

        known = np.array(self.parts) <= capacity
        shares = np.array(self.shares)[known]
        holds = np.zeros((len(shares), len(packing.devices)))
        holds[np.arange(len(shares)), np.array(self.kinds)[known]] = -1.0
        count = len(packing.copies)
        solution = linprog(
            -np.concatenate((packing.copies, np.zeros(len(packing.devices)))),
            A_ub=np.concatenate((shares, holds), axis=1),
            b_ub=np.zeros(len(shares)),
            A_eq=np.concatenate((np.zeros(count), packing.devices))[None],
            b_eq=np.ones(1),
            method="highs",
        )
        assert solution.status == 0, f"prices must be bounded, because every operator is in a load: {solution.message}"
        return np.maximum(solution.x[:count], 0.0)
