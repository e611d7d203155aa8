"""What fits on one device, as a relaxation of whole plans: a configuration linear programme, solved by prices.

Give every operator a price. A device whose stage has degree d holds 1/d of each operator of the stage, so over all
devices of a plan the prices sum to the price of all operators. If no device can hold more than K of price within c
seconds, and K times the devices is less than the price of all, then no plan is as fast as c. That holds for any
prices; the best ones are the dual of packing fractions of loads, a linear programme with a column per load. Its columns
are generated where they are needed, by a knapsack over whole numbers of `GRID` parts of the time (Gilmore and Gomory,
A linear programming approach to the cutting-stock problem, Operations Research 9, 1961).

The knapsack rounds seconds down, and knows of a stage only that it holds an unbroken stretch of every chain. So what it
finds is never less than the truth, whatever the solver's accuracy, and the bound is proven wherever it stops.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.planners.lower_bound.knapsack import GRID, Fitted, Menu, fitted_menu, knapsack, taken

Array = NDArray[np.float64]
_CLOSE = 1.002
"""The search ends where the known loads leave less than this to be proven."""
_SURE = 1 - 1e-9
_EFFORT = 100_000_000
"""Additions in all knapsacks, about."""
_CALL = 20
"""Rows that take as long as the calls for a menu do."""
_MOST_ROUNDS = 150


@dataclass(frozen=True, slots=True)
class Packing:
    """How devices may be loaded.

    Every priced position stands for `copies` operators: the same position of equal chains.
    """

    copies: Array
    """[positions]"""
    loads: tuple[tuple[int, tuple[Menu, ...]], ...]
    """Kind of device, and the menus from which its load is taken; a kind may have several alternatives."""
    devices: Array
    """[kinds]: how many there are."""


def packing_bound(packing: Packing, least: float, effort: float = 1.0) -> float:
    """Return seconds within which the loads of devices cannot hold all operators, at least `least`.

    Args:
        packing: how devices may be loaded.
        least: a bound that is known already, above 0.
        effort: 1 ends within half a second; more may prove more.
    """
    rounds, bound = int(_MOST_ROUNDS * effort), least
    while rounds > 0:
        board = _Board.of(packing, 1.5 * bound)
        before, (bound, used) = bound, board.raised(bound, rounds, _EFFORT * effort)
        rounds -= used
        if bound < board.step * GRID or bound <= before:
            return bound
    return bound


@dataclass(frozen=True, slots=True)
class _Board:
    """A packing on a grid of seconds."""

    packing: Packing
    loads: tuple[tuple[int, tuple[Fitted, ...]], ...]
    step: float
    """Seconds of one part."""

    @staticmethod
    def of(packing: Packing, longest: float) -> "_Board":
        step = longest / GRID
        loads = tuple((kind, tuple(fitted_menu(menu, step) for menu in menus)) for kind, menus in packing.loads)
        return _Board(packing, loads, step)

    def raised(self, bound: float, most_rounds: int, most_effort: float) -> tuple[float, int]:
        """Return the bound that prices prove, and the rounds it took."""
        effort = GRID * sum((len(f.firsts) + _CALL) * f.menu.copies for _, menus in self.loads for f in menus)
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
            for kind, menus in self.loads:
                values, choices = knapsack(menus, prices)
                most[kind] = np.maximum(most[kind], values)
                columns.add(kind, *taken(choices, done, len(prices)))
            # Whoever has less than done + 1 parts of time has at most `done` whole ones.
            proven = np.flatnonzero(self.packing.devices @ most < self.packing.copies @ prices * _SURE)
            done = max(done, int(proven[-1]) + 1 if len(proven) else 0)
        return max(bound, min(done, GRID) * self.step), rounds or 1


@dataclass(slots=True)
class _Columns:
    """The loads known so far: kind of device, parts of time, share of every position."""

    kinds: list[int]
    parts: list[int]
    shares: list[Array]

    @staticmethod
    def singles(board: _Board) -> "_Columns":
        """Return every choice alone."""
        columns = _Columns([], [], [])
        for kind, menus in board.loads:
            for fitted in menus:
                menu = fitted.menu
                for row in np.flatnonzero(menu.stop - menu.start == 1):
                    share = np.zeros(len(board.packing.copies))
                    share[menu.start[row]] = menu.share[row]
                    columns.add(kind, int(fitted.parts[row]), share)
        return columns

    def add(self, kind: int, parts: int, share: Array) -> None:
        """Know one more."""
        self.kinds.append(kind)
        self.parts.append(parts)
        self.shares.append(share)

    @property
    def least_parts(self) -> int:
        """The parts that some operator takes on every device; one more than the grid has where it is found on none."""
        parts, shares = np.array(self.parts), np.array(self.shares)
        return int(np.where(shares > 0, parts[:, None], GRID + 1).min(axis=0).max())

    def prices(self, packing: Packing, capacity: int) -> Array:
        """Return prices under which the known loads make the operators dearest; all devices together can hold 1.

        The capacity is at least `least_parts`.
        """
        from scipy.optimize import linprog

        known = np.array(self.parts) <= capacity
        shares = np.array(self.shares)[known]
        holds = np.zeros((len(shares), len(packing.devices)))
        holds[np.arange(len(shares)), np.array(self.kinds)[known]] = -1.0
        count = len(packing.copies)
        found = linprog(
            -np.concatenate((packing.copies, np.zeros(len(packing.devices)))),
            A_ub=np.concatenate((shares, holds), axis=1),
            b_ub=np.zeros(len(shares)),
            A_eq=np.concatenate((np.zeros(count), packing.devices))[None],
            b_eq=np.ones(1),
            method="highs",
        )
        assert found.status == 0, f"prices are bounded when every operator is in a load: {found.message}"
        return np.maximum(found.x[:count], 0.0)
