"""Candidates take turns until the fastest is known."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from graphpipe.training.tune.racing import FIRST_TURNS, MANY_TURNS, MOST_TURNS, Raced, find_fastest, next_turn


def raced(seconds: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Return the steps that candidates measure if their turns take these seconds, again and again."""
    found: dict[int, list[float]] = {each: [] for each in seconds}
    racing = [*seconds]
    while racing:
        for each in racing:
            found[each].append(seconds[each][len(found[each]) % len(seconds[each])])
        racing = next_turn(found)
    return found


@given(seconds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12))
def test_the_fastest_is_first_if_steps_are_steady(seconds: list[float]) -> None:
    """Whatever the predicted order."""

    def race(chosen: Sequence[int], turns: int) -> Mapping[int, Sequence[float]]:
        return raced({each: [seconds[each]] for each in chosen})

    found = find_fastest(range(len(seconds)), race, joining=list[int])
    assert seconds[found.order[0]] == min(seconds)


def test_eight_candidates_take_a_quarter_of_the_steps_of_all() -> None:
    """Eight take 2 turns, three of them 4 more, and then the fastest has won every turn."""
    found = raced({each: [seconds] for each, seconds in enumerate([5.0, 3.0, 8.0, 1.0, 2.0, 9.0, 7.0, 6.0])})
    assert {each: len(steps) for each, steps in found.items()} == {3: 6, 4: 6, 1: 6} | dict.fromkeys((0, 2, 5, 6, 7), 2)
    assert sum(map(len, found.values())) <= 8 * MOST_TURNS / 4


def test_candidates_that_are_about_as_fast_stop_before_the_end() -> None:
    """Which of the two is kept does not matter. Two that win turns in turn, and differ by more, go on to the end."""
    assert {len(steps) for steps in raced({0: [1.0], 1: [1.02]}).values()} == {MANY_TURNS}
    assert {len(steps) for steps in raced({0: [1.0, 1.2, 1.0], 1: [1.1]}).values()} == {MOST_TURNS}


def test_a_slow_turn_is_no_verdict() -> None:
    """The median decides: a candidate that was disturbed once still wins."""
    found = Raced(races=(raced({0: [5.0] + [1.0] * (MOST_TURNS - 1), 1: [2.0]}),))
    assert found.order == [0, 1]
    assert found.typical(0) == 1.0


def test_a_slow_turn_at_first_ends_nothing() -> None:
    """The fastest plan of six once took four times as long in one of its first two turns, and left the race."""
    steady = {each: [seconds] for each, seconds in enumerate([1.2, 1.3, 1.4, 1.5, 1.6])}
    found = Raced(races=(raced({**steady, 5: [1.0, 4.0] + [1.0] * (MOST_TURNS - 2)}),))
    assert found.order[0] == 5


def test_a_candidate_that_joins_races_against_the_winner() -> None:
    """It is asked for once, after the race. The winner is the one of the last race."""
    seconds, asked = {0: [3.0], 1: [2.0], 2: [1.0]}, list[tuple[Sequence[int], int]]()

    def race(chosen: Sequence[int], turns: int) -> Mapping[int, Sequence[float]]:
        asked.append((chosen, turns))
        return raced({each: seconds[each] for each in chosen})

    found = find_fastest([0, 1], race, joining=lambda: [2])
    assert asked == [([0, 1], MOST_TURNS), ([1, 2], MANY_TURNS)]
    assert found.order == [2, 1, 0]
    assert found.steps(1) == 12


def test_what_fails_is_left_out() -> None:
    """If all fail, nothing is in the order. One that remains alone needs no other turn."""
    assert find_fastest([0, 1], lambda chosen, turns: {1: [2.0]}, joining=list[int]).order == [1]
    assert find_fastest([0, 1], lambda chosen, turns: {}, joining=list[int]).order == []
    assert len(raced({0: [1.0]})[0]) == 6
    assert next_turn({0: [1.0] * FIRST_TURNS, 1: [2.0]}) == [0]
