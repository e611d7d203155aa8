"""Partial choices of what a stage keeps, recomputes and offloads (`relief`), and which of them no other one beats."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Decision = Literal["keep", "recompute", "offload"]
_FEW = 16
"""Partial choices up to which Python compares them faster than numpy."""
_AT_ONCE = 256
"""Partial choices that are compared with all others at once."""


class Choice(NamedTuple):
    """A partial choice, for the operators so far."""

    seconds: float
    """Of recomputed forwards, and of copies beyond the window."""
    bytes: float
    copied: float
    """Seconds of copies within the window."""
    region: float
    """The largest recomputed operator, in bytes."""
    rests: float
    """Bytes elsewhere, if there is only so much room for them; otherwise 0."""
    decisions: tuple[Decision, ...]


def unbeaten(choices: Sequence[Choice], most: int) -> list[Choice]:
    """Return the choices that no other one beats in any figure; at most so many."""
    ordered = sorted(choices)
    found = _unbeaten_of_few(ordered) if len(ordered) <= _FEW else _unbeaten_of_many(ordered)
    if len(found) <= most:
        return found
    by_bytes = sorted(found, key=lambda choice: choice.bytes)
    step = (len(by_bytes) - 1) / (most - 1)
    return [by_bytes[round(turn * step)] for turn in range(most)]


def _unbeaten_of_few(ordered: Sequence[Choice]) -> list[Choice]:
    found: list[Choice] = []
    for choice in ordered:
        _, count, copied, region, rests, _ = choice
        # An earlier choice takes as many seconds at most. What a beaten one beats, the one that beats it beats too.
        if not any(each[1] <= count and each[2] <= copied and each[3] <= region and each[4] <= rests for each in found):
            found.append(choice)
    return found


def _unbeaten_of_many(ordered: Sequence[Choice]) -> list[Choice]:
    figures = np.array([choice[1:5] for choice in ordered])
    found: list[Choice] = []
    for first in range(0, len(ordered), _AT_ONCE):
        own = figures[first : first + _AT_ONCE]
        # Beaten ones count too here.
        beats = (figures[None, : first + len(own)] <= own[:, None]).all(axis=2)
        unbeaten = np.flatnonzero(~np.tril(beats, first - 1).any(axis=1))
        found += [ordered[first + at] for at in unbeaten.tolist()]
    return found
