"""Candidates run for more and more steps, until the fastest is known."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from graphpipe.training.tune.halving import halve


class Machine:
    """Runs candidates whose steps take fixed seconds, and counts the steps."""

    def __init__(self, seconds: Sequence[float], fails: Sequence[int] = ()) -> None:
        self.seconds, self.fails, self.rounds = seconds, fails, list[tuple[tuple[int, ...], int]]()

    def measure(self, chosen: Sequence[int], steps: int) -> Mapping[int, Sequence[float]]:
        self.rounds.append((tuple(chosen), steps))
        return {each: [self.seconds[each]] * steps for each in chosen if each not in self.fails}

    @property
    def steps(self) -> int:
        return sum(len(chosen) * steps for chosen, steps in self.rounds)


@given(seconds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12))
def test_the_fastest_is_first_if_steps_are_steady(seconds: list[float]) -> None:
    """Whatever the predicted order."""
    halved = halve(range(len(seconds)), Machine(seconds).measure)
    assert seconds[halved.order[0]] == min(seconds)


def test_eight_candidates_take_a_third_of_the_steps_of_all() -> None:
    """Rounds of 8, 3 and 2 candidates with 2, 4 and 8 steps: 44 of the 112 that 14 steps of each would be."""
    machine = Machine([5.0, 3.0, 8.0, 1.0, 2.0, 9.0, 7.0, 6.0])
    halved = halve(range(8), machine.measure)
    assert machine.rounds == [(tuple(range(8)), 2), ((3, 4, 1), 4), ((3, 4), 8)]
    assert machine.steps < 0.4 * 8 * len(halved.seconds[3])
    assert halved.order[:3] == [3, 4, 1]


def test_a_slow_first_step_is_no_verdict() -> None:
    """The median over all rounds decides: a candidate that was disturbed once still wins."""
    steps = iter([[1.0, 5.0], [2.0, 2.0], [1.0] * 4, [2.0] * 4])

    def measure(chosen: Sequence[int], count: int) -> Mapping[int, Sequence[float]]:
        return {each: next(steps) for each in chosen}

    # After the first round the disturbed one is second; both go on.
    assert halve([0, 1], lambda chosen, count: measure(sorted(chosen), count)).order[0] == 0


def test_a_candidate_that_joins_runs_a_first_round_too() -> None:
    """It is asked for once, after the first round."""
    machine = Machine([3.0, 2.0, 1.0])
    halved = halve([0, 1], machine.measure, joining=lambda: [2])
    assert machine.rounds[:2] == [((0, 1), 2), ((2,), 2)]
    assert halved.order[0] == 2


def test_what_fails_is_left_out() -> None:
    """If all fail, nothing is in the order."""
    assert halve([0, 1], Machine([1.0, 2.0], fails=[0]).measure).order == [1]
    assert halve([0], Machine([1.0], fails=[0]).measure).order == []
