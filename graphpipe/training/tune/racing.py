"""Successive halving: all candidates run for a few steps, the faster ones for more, until the fastest is known.

Jamieson, Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization. AISTATS 2016, figure 1.
There half of the candidates go on after each round. Here it is a third, because one step of a plan tells more about it
than one iteration of a training does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

GOES_ON = 3
"""One of so many candidates goes on."""
FIRST_STEPS = 2
"""Measured steps of each candidate in the first round. Each later round has twice as many."""

Measure = Callable[[Sequence[int], int], Mapping[int, Sequence[float]]]
"""Runs candidates for so many steps each, and returns the seconds of these steps. Candidates that fail, and those that
the budget does not reach, are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """The seconds of all measured steps."""

    seconds: Mapping[int, tuple[float, ...]]
    """Of each candidate that ran, those of all rounds."""

    @property
    def order(self) -> list[int]:
        """The candidates: those of the last rounds first, within a round the fastest first."""
        return sorted(self.seconds, key=lambda each: (-len(self.seconds[each]), self.typical(each)))

    def typical(self, candidate: int) -> float:
        """Return the median seconds of a step."""
        return median(self.seconds[candidate])


def halve(
    candidates: Sequence[int],
    measure: Measure,
    *,
    joining: Callable[[], Sequence[int]] = tuple[int, ...],
    most_steps: int = 16,
) -> Halved:
    """Return the measured steps of candidates. The first of `order` is the fastest.

    Args:
        candidates: their numbers.
        measure: runs some of them.
        joining: called once, after the first round, for candidates that it has suggested. They run a first round too.
        most_steps: of a candidate in one round.
    """
    seconds: dict[int, tuple[float, ...]] = {}

    def run(chosen: Sequence[int], steps: int) -> list[int]:
        # The candidates that ran, the fastest first.
        for each, found in measure(chosen, steps).items():
            seconds[each] = (*seconds.get(each, ()), *found)
        halved = Halved(seconds=seconds)
        return sorted((each for each in chosen if each in seconds), key=halved.typical)

    # 1. Every candidate runs.
    steps = FIRST_STEPS
    left = run(candidates, steps)
    if joined := joining():
        left = sorted(left + run(joined, steps), key=Halved(seconds=seconds).typical)
    # 2. The faster third runs for twice as many steps. The last round is between two.
    while len(left) > 1 and steps < most_steps:
        steps *= 2
        chosen = left[: max(2, math.ceil(len(left) / GOES_ON))]
        left = run(chosen, steps)
        if len(chosen) == 2:
            break
    return Halved(seconds=seconds)
