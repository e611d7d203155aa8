"""Candidates race: they take turns, step by step, and the slower ones leave, until the fastest is known.

A machine whose pace changes slows all of them, because they take turns. At first a third of the candidates goes on, and
later the two fastest. Successive halving lets half of them go on each time, but one step of a plan tells more about it
than one iteration of a training does.

    Jamieson, Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization. AISTATS 2016, figure 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

GOES_ON = 3
"""One of so many candidates goes on after the first turns, and two at least."""
FIRST_TURNS, FEW_TURNS, MANY_TURNS, MOST_TURNS = 2, 6, 8, 14
"""After the first turns a third goes on, and after a few the two fastest. After many, these may be about as fast."""
LOST = 5
"""The fastest may lose one of so many turns. Of equal candidates, one wins as many in a tenth of races by chance."""
CLEARLY = 0.03
"""Candidates whose steps differ by a smaller share are about as fast."""

Race = Callable[[Sequence[int], int], Mapping[int, Sequence[float]]]
"""Runs candidates for so many turns at most, of which those of `next_turn` go on, and returns the seconds of their
steps. Candidates that fail, and those that the budget does not reach, are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """The seconds of all measured steps, by candidate."""

    races: tuple[Mapping[int, Sequence[float]], ...]
    """One race after the other."""

    @property
    def order(self) -> list[int]:
        """The candidates: those of the last race first, in a race those with most turns, among these the fastest."""
        ran = {each for race in self.races for each in race}
        return sorted(ran, key=lambda each: (-self._last(each), -len(self._turns(each)), self.typical(each)))

    def typical(self, candidate: int) -> float:
        """Return the median seconds of a step in the last race that a candidate ran."""
        return median(self._turns(candidate))

    def steps(self, candidate: int) -> int:
        """Return how many steps were measured."""
        return sum(len(race.get(candidate, ())) for race in self.races)

    def _turns(self, candidate: int) -> Sequence[float]:
        return self.races[self._last(candidate)][candidate]

    def _last(self, candidate: int) -> int:
        return max(at for at, race in enumerate(self.races) if candidate in race)


def find_fastest(candidates: Sequence[int], race: Race, *, joining: Callable[[], Sequence[int]]) -> Raced:
    """Return the measured steps of candidates. The first of `order` is the fastest.

    Args:
        candidates: their numbers.
        race: runs some of them.
        joining: called once, after the race, for candidates that it has suggested. They race against the winner,
            for fewer turns.
    """
    raced = Raced(races=(race(candidates, MOST_TURNS),))
    if joined := joining():
        raced = Raced(races=(*raced.races, race([*raced.order[:1], *joined], MANY_TURNS)))
    return raced


def next_turn(seconds: Mapping[int, Sequence[float]]) -> list[int]:
    """Return the candidates that take another turn, the fastest first; none if the fastest is known.

    Args:
        seconds: of the turns so far, at least one. Those who have left have fewer.
    """
    turns = max(map(len, seconds.values()))
    # Other work only makes a step longer, so the least of few turns tells most, as the median does of many.
    typical = min if turns <= FIRST_TURNS else median
    racing = sorted((each for each in seconds if len(seconds[each]) == turns), key=lambda each: typical(seconds[each]))
    if turns == FIRST_TURNS:
        return racing[: max(2, math.ceil(len(racing) / GOES_ON))]
    if turns < FEW_TURNS:
        return racing
    if turns >= MOST_TURNS or len(racing) == 1:
        return []
    first, second = seconds[racing[0]], seconds[racing[1]]
    if median(second) > (1 + CLEARLY) * median(first):
        lost = sum(own >= other for own, other in zip(first, second, strict=True))
        known = lost <= turns // LOST
    else:
        known = turns >= MANY_TURNS
    return [] if known else racing[:2]
