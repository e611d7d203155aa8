"""Which partial choices no other one beats, against comparing each with every other."""

import random

import numpy as np
import pytest

from graphpipe.planners.relief.choices import Choices, evenly

FIGURES = ("seconds", "bytes", "copied", "region", "offloaded")


def drawn(rng: random.Random, count: int, largest: int) -> Choices:
    """Draw choices with small whole figures, so that many are equal. Their decisions are their numbers."""
    figures = {name: np.array([float(rng.randint(0, largest)) for _ in range(count)]) for name in FIGURES}
    return Choices(decisions=np.arange(count, dtype=np.int8)[:, None], **figures)


def numbers(choices: Choices) -> list[int]:
    return choices.decisions[:, 0].tolist()


def unbeaten(choices: Choices, groups: list[int]) -> list[int]:
    """Return the numbers of those that have less in some figure than each other one; of equals the first."""
    rows = list(zip(*(getattr(choices, name).tolist() for name in FIGURES), strict=True))
    return [
        one
        for one, row in enumerate(rows)
        if not any(
            group == groups[one]
            and all(a <= b for a, b in zip(rows[other], row, strict=True))
            and (rows[other], other) < (row, one)
            for other, group in enumerate(groups)
        )
    ]


@pytest.mark.parametrize(("count", "largest"), [(1, 3), (6, 1), (20, 1), (20, 3), (127, 3), (127, 12)])
def test_a_choice_that_another_one_beats_in_everything_is_dropped(
    count: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seven at once, so that later rows are also compared with those kept before.
    monkeypatch.setattr("graphpipe.planners.relief.choices._AT_ONCE", 7)
    rng = random.Random(count + largest)
    for _ in range(5):
        choices, groups = drawn(rng, count, largest), [rng.randint(0, 2) for _ in range(count)]
        assert numbers(choices.unbeaten(np.array(groups))) == unbeaten(choices, groups)


def test_of_too_many_those_at_equal_distances_in_bytes_are_kept() -> None:
    # The less seconds, the more bytes: no choice is beaten. Choice n has 10 - n bytes; the second group has two.
    count = 9
    figures = dict.fromkeys(("copied", "region", "offloaded"), np.zeros(count))
    choices = Choices(
        decisions=np.arange(count, dtype=np.int8)[:, None],
        seconds=np.arange(count, dtype=np.float64),
        bytes=10.0 - np.arange(count, dtype=np.float64),
        **figures,
    )
    groups = np.array([0, 0, 0, 1, 0, 1, 0, 0, 0])
    assert numbers(choices.unbeaten(groups)) == numbers(choices.unbeaten(groups, 7)) == [*range(9)]
    assert numbers(choices.unbeaten(groups, 3)) == [0, 3, 4, 5, 8]
    assert numbers(choices.unbeaten(groups, 2)) == [0, 3, 5, 8]
    third = np.array([0, 0, 0, 1, 2, 1, 2, 0, 2])
    assert numbers(choices.unbeaten(third, 2)) == [0, 3, 4, 5, 7, 8]
    assert len(choices) == 9
    assert numbers(choices.only(np.array([2, 1]))) == [2, 1]


def test_positions_at_equal_distances() -> None:
    assert evenly(9, 3).tolist() == [0, 4, 8]
    assert evenly(10, 4).tolist() == [0, 3, 6, 9]
    assert evenly(11, 2).tolist() == [0, 10]


def test_one_choice_comes_before_the_first_operator() -> None:
    before = Choices.before(3)
    assert before.decisions.tolist() == [[0, 0, 0]]
    assert [getattr(before, name).tolist() for name in FIGURES] == [[0.0]] * 5
