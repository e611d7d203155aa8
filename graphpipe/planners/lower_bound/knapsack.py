"""The dearest load of a device: a knapsack over menus, in whole parts of the time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
GRID = 2048
"""Parts of the longest time."""
_BELOW = 1 - 1e-9
"""Seconds are rounded down also where they are rounded already."""


@dataclass(frozen=True, slots=True)
class Menu:
    """Stretches of a chain of which a device may take one; from each of `copies` equal chains."""

    copies: int
    start: Indices
    stop: Indices
    """Priced positions start to stop - 1."""
    share: Array
    """What the device holds of them: one over the degree."""
    seconds: Array


@dataclass(frozen=True, slots=True)
class Fitted:
    """A menu in whole parts of the time."""

    menu: Menu
    parts: Indices
    """Rising."""
    firsts: Indices
    """Where a new number of parts begins."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a knapsack came about: per capacity the number of the chosen row, -1 for none."""

    fitted: Fitted
    rows: Indices
    chosen: Indices


def fitted_menu(menu: Menu, step: float) -> Fitted:
    """Return a menu in parts of `step` seconds, without what takes longer than all of them."""
    parts = np.floor(menu.seconds / step * _BELOW)
    order = np.argsort(parts, kind="stable")
    order = order[parts[order] <= GRID]
    kept = Menu(menu.copies, menu.start[order], menu.stop[order], menu.share[order], menu.seconds[order])
    whole = parts[order].astype(np.intp)
    return Fitted(kept, whole, np.flatnonzero(np.diff(whole, prepend=-1)))


def knapsack(menus: Sequence[Fitted], prices: Array) -> tuple[Array, list[Choice]]:
    """Return the highest price that fits into 0 to GRID parts, and how."""
    summed = np.concatenate(([0.0], np.cumsum(prices)))
    best, choices = np.zeros(GRID + 1), list[Choice]()
    for fitted in menus:
        menu = fitted.menu
        if not len(fitted.parts):
            continue
        value = (summed[menu.stop] - summed[menu.start]) * menu.share
        rows = _worthwhile(fitted, value)
        if not len(rows):
            continue
        left = np.arange(GRID + 1) - fitted.parts[rows][:, None]
        for _ in range(menu.copies):
            with_row = np.where(left >= 0, best[np.maximum(left, 0)], -np.inf) + value[rows][:, None]
            first = with_row.argmax(axis=0)
            top = with_row[first, np.arange(GRID + 1)]
            choices.append(Choice(fitted, rows, np.where(top > best, first, -1)))
            best = np.maximum(best, top)
    return best, choices


def _worthwhile(fitted: Fitted, value: Array) -> Indices:
    """Return the dearest row of each number of parts, if dearer than all shorter ones."""
    groups = np.split(np.arange(len(value)), fitted.firsts[1:])
    dearest = np.array([group[value[group].argmax()] for group in groups], dtype=np.intp)
    before = np.concatenate(([0.0], np.maximum.accumulate(value[dearest])[:-1]))
    return dearest[value[dearest] > before]


def taken(choices: Sequence[Choice], capacity: int, positions: int) -> tuple[int, Array]:
    """Return the parts and the shares of the load that a knapsack found best for a capacity."""
    left, share = capacity, np.zeros(positions)
    for choice in reversed(choices):
        chosen = choice.chosen[left]
        if chosen >= 0:
            row, menu = choice.rows[chosen], choice.fitted.menu
            share[menu.start[row] : menu.stop[row]] += menu.share[row]
            left -= int(choice.fitted.parts[row])
    return capacity - left, share
