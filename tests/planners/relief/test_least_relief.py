"""The bound on relief, by hand: 5 bytes for 1 s, 10 bytes for 10 s, 20 bytes for 40 s."""

from math import inf

import numpy as np
import pytest

from graphpipe.planners.relief.least_relief import LeastRelief

BYTES, FORWARD = [10.0, 20.0, 0.0, 5.0], [10.0, 40.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("copy_seconds", "freed", "hidden", "away", "least"),
    [
        # The copies of a byte take 1.5 s, which is less than the 2 s of the last operator.
        (1.5, -1, 0, 0, 0),
        (1.5, 0, 0, 0, 0),
        (1.5, 0, -3, 0, 0),
        (1.5, 5, 0, 0, 1),
        (1.5, 10, 0, 0, 1 + 5),
        (1.5, 17, 0, 0, 1 + 10 + 2 * 1.5),
        (1.5, 7, 3, 0, 1),  # the pipeline hides the copies of two bytes
        (1.5, 19, 3, 0, 1 + 10 + 2 * 1.5),
        (1.5, 35, 0, 0, 1 + 10 + 20 * 1.5),
        (1.5, 36, 0, 0, inf),  # there are 35 bytes
        (1.5, 36, 0, 1, 1 + 10 + 21 * 1.5),  # and one that is already away
        (1.5, 37, 0, 1, inf),
        (2.0, 25, 0, 0, 1 + 10 + 10 * 2),  # recomputing the last operator takes as long as its copies
        (3.0, 25, 0, 0, 1 + 10 + 10 * 2),
        (inf, 25, 9, 0, 1 + 10 + 10 * 2),
        (inf, 35, 9, 0, 1 + 10 + 40),  # all of them, and nothing else is left to do
        (inf, 36, 9, 2, inf),
        (0.0, 35, 0, 0, 0),
        (0.0, 36, 0, 0, inf),
    ],
)
def test_copies_that_are_hidden_come_first_and_then_the_cheapest(
    copy_seconds: float, freed: float, hidden: float, away: float, least: float
) -> None:
    bound = LeastRelief.of(BYTES, FORWARD, copy_seconds)
    # Two at once: no entry changes another.
    found = bound.seconds(np.array([freed, 5.0]), np.array([hidden, 0.0]), np.array([away, 0.0]))
    assert found.tolist() == pytest.approx([least, 0.0 if copy_seconds == 0 else 1.0])


def test_nothing_left_to_free() -> None:
    none = LeastRelief.of([], [], inf)
    assert none.seconds(np.array([0.0, 1.0]), np.zeros(2), np.array([0.0, 2.0])).tolist() == [0, inf]
