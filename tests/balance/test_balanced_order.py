"""Blocks of a balanced mini-batch have about equal loads."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from builders import Part, make_plan
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.balance.balanced_order import balanced_order
from graphpipe.balance.blocks import Blocks


def _blocks(loads: np.ndarray, order: np.ndarray, size: int) -> np.ndarray:
    return loads[order].reshape(-1, size).sum(axis=1)


def test_the_example_of_the_docstring() -> None:
    """Two micro-batches of 11, on two replicas each."""
    loads = np.array([8.0, 1, 1, 1, 4, 4, 2, 1])
    order = balanced_order(loads, Blocks((4, 2), replicas=((4, 2),)))
    assert loads[order].tolist() == [8, 1, 1, 1, 1, 2, 4, 4]
    assert _blocks(loads, order, 4).tolist() == [11, 11]


@given(loads=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 8.0]), min_size=8, max_size=8))
def test_halves_are_as_even_as_the_best_of_all_divisions_or_one_smallest_load_off(loads: list[float]) -> None:
    """Against brute force over all 35 ways to halve eight samples."""
    table = np.array(loads)
    order = balanced_order(table, Blocks((4,)))
    assert sorted(order.tolist()) == list(range(8))
    found = float(_blocks(table, order, 4).max())
    best = min(max(sum(half), table.sum() - sum(half)) for half in combinations(loads, 4))
    assert found <= best + 0.5


@given(
    loads=st.lists(st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 8.0)), min_size=24, max_size=24),
    sizes=st.sampled_from([[12, 6], [8, 4], [24], [6, 3, 1]]),
)
def test_no_block_is_fuller_than_in_the_given_order(loads: list[tuple[float, float]], sizes: list[int]) -> None:
    """Of several kinds of work, by the sum of squares over the blocks."""
    table = np.array(loads)
    order = balanced_order(table, Blocks(tuple(sizes)))
    assert sorted(order.tolist()) == list(range(24))
    shares = table / np.maximum(table.sum(axis=0), 1e-300)
    squares = [(shares[rows].reshape(-1, sizes[0], 2).sum(axis=1) ** 2).sum() for rows in (order, np.arange(24))]
    assert squares[0] <= squares[1] + 1e-9


def test_equal_samples_stay_where_they_are_within_a_block() -> None:
    """Without blocks, nothing moves."""
    assert balanced_order(np.ones(6), Blocks(())).tolist() == list(range(6))
    for block in np.split(balanced_order(np.array([3.0, 1, 2, 1, 3, 2]), Blocks((3,))), 2):
        assert block.tolist() == sorted(block.tolist())


def test_the_blocks_of_a_plan_are_micro_batches_and_parts_of_replicas() -> None:
    """A micro-batch that is the whole mini-batch is no block, but its parts on replicas are."""
    plan = make_plan([Part(micro_batch=8, degree=2), Part(micro_batch=2), Part(micro_batch=4, degree=4)], batch_size=8)
    assert Blocks.of(plan) == Blocks((4, 2, 1), replicas=((8, 4), (4, 1)))
    assert Blocks.of(replace(plan, stages=plan.stages[1:2])) == Blocks((2,))


@pytest.mark.parametrize("size", [3, 5])
def test_a_size_that_divides_nothing_is_left_out(size: int) -> None:
    """The other sizes still count."""
    loads = np.array([8.0, 1, 1, 1, 4, 4, 2, 1])
    assert _blocks(loads, balanced_order(loads, Blocks((4, size))), 4).tolist() == [11, 11]


@given(loads=st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0]), min_size=32, max_size=32))
def test_replicas_are_about_as_even_as_micro_batches(loads: list[float]) -> None:
    """The largest sample of every micro-batch went to the first replica: a step of albums on four replicas took 7.6 s
    where the given order took 6.3."""
    table = np.array(loads)
    order = balanced_order(table, Blocks((4, 1), replicas=((4, 1),)))
    totals = table[order].reshape(8, 4).sum(axis=0)
    assert totals.max() - totals.min() <= 3.0  # the largest less the smallest sample


def test_a_replica_with_a_very_large_sample_gets_less_later() -> None:
    """The parts of each micro-batch were as even as they could be, so that nothing made up for the first."""
    loads = np.array([24.0, *[1.0, 2.0, 3.0, 4.0] * 11, 1.0, 2.0, 3.0])
    found = loads[balanced_order(loads, Blocks((12, 4), replicas=((12, 4),)))]
    totals = found.reshape(4, 3, 4).sum(axis=(0, 2))
    assert totals.max() - totals.min() <= 2.0  # of 140 in all; it was 20


def test_replicas_of_stages_of_several_degrees_are_even() -> None:
    """Four replicas of one stage, and two of another with twice their micro-batch."""
    loads = np.array([8.0, 1, 1, 1] * 4)
    found = loads[balanced_order(loads, Blocks((8, 4, 1), replicas=((8, 4), (4, 1))))]
    assert found.reshape(2, 2, 4).sum(axis=(0, 2)).tolist() == [22, 22]
    assert found.reshape(4, 4).sum(axis=0).tolist() == [11, 11, 11, 11]
