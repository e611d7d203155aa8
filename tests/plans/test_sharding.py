"""Which samples a replica computes: by hand, and as a partition of the mini-batch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.plans.sharding import SampleRange, common_samples, count_micro_batches, sample_range


def test_the_drawn_mini_batch() -> None:
    found = [[sample_range(8, 4, 2, index, replica) for replica in (0, 1)] for index in (0, 1)]
    assert found == [[SampleRange(0, 2), SampleRange(2, 4)], [SampleRange(4, 6), SampleRange(6, 8)]]


def test_a_short_last_micro_batch_is_shared_almost_equally() -> None:
    assert count_micro_batches(11, 4) == 3
    assert count_micro_batches(12, 4) == 3
    assert [sample_range(11, 4, 2, 2, replica) for replica in (0, 1)] == [SampleRange(8, 9), SampleRange(9, 11)]


@pytest.mark.parametrize(
    ("one", "other", "both", "length"),
    [
        (SampleRange(0, 4), SampleRange(2, 6), SampleRange(2, 4), 2),
        (SampleRange(2, 6), SampleRange(0, 4), SampleRange(2, 4), 2),
        (SampleRange(0, 2), SampleRange(4, 6), SampleRange(4, 2), 0),
        (SampleRange(1, 2), SampleRange(0, 9), SampleRange(1, 2), 1),
    ],
)
def test_samples_in_both_ranges(one: SampleRange, other: SampleRange, both: SampleRange, length: int) -> None:
    assert one & other == both
    assert len(one & other) == length
    assert SampleRange(1, 2) < SampleRange(1, 3) < SampleRange(2, 3)


def test_rows_of_samples_begin_with_the_tensor() -> None:
    assert SampleRange(5, 8).rows_of(SampleRange(3, 9)) == slice(2, 5)
    assert SampleRange(6, 8).rows_of(SampleRange(2, 9)) == slice(4, 6)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4))
def test_every_sample_is_computed_once_in_order(batch: int, micro_batch: int, degree: int) -> None:
    ranges = [
        sample_range(batch, micro_batch, degree, index, replica)
        for index in range(count_micro_batches(batch, micro_batch))
        for replica in range(degree)
    ]
    assert [sample for each in ranges for sample in range(each.start, each.stop)] == list(range(batch))
    for first in range(0, len(ranges), degree):
        lengths = [len(each) for each in ranges[first : first + degree]]
        assert max(lengths) - min(lengths) <= 1


def test_common_samples_by_hand() -> None:
    # Micro-batches of 4 on two replicas, 0 1 | 2 3 and 4 5 | 6 7, and of 8 on one.
    found = common_samples(8, 4, 2, 8, 1)
    assert [pair[:2] for pair in found.pairs] == [(0, 0), (1, 0)]
    assert found.pieces == (((0, 0, 2), (1, 0, 2)),)  # both replicas have alike
    assert [pair[2] for pair in found.pairs] == [0, 0]
    assert common_samples(600, 300, 1, 600, 1).pieces == (((0, 0, 300), (1, 0, 300)),)


def owners(batch: int, micro_batch: int, degree: int) -> list[tuple[int, int]]:
    """Return the micro-batch and the replica of each sample."""
    found: dict[int, tuple[int, int]] = {}
    for index in range(count_micro_batches(batch, micro_batch)):
        for replica in range(degree):
            samples = sample_range(batch, micro_batch, degree, index, replica)
            found |= dict.fromkeys(range(samples.start, samples.stop), (index, replica))
    return [found[sample] for sample in range(batch)]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.integers(1, 12), st.integers(1, 4))
def test_common_samples_are_those_that_two_replicas_have(
    batch: int, micro_batch: int, degree: int, other_micro_batch: int, other_degree: int
) -> None:
    counts: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
    sides = owners(batch, micro_batch, degree), owners(batch, other_micro_batch, other_degree)
    for (index, replica), (other_index, other) in zip(*sides, strict=True):
        counts.setdefault((replica, other), Counter())[index, other_index] += 1
    found = common_samples(batch, micro_batch, degree, other_micro_batch, other_degree)
    pieces = {(one, other): found.pieces[at] for one, other, at in found.pairs}
    assert pieces == {
        pair: tuple((*indices, count) for indices, count in sorted(each.items())) for pair, each in counts.items()
    }
    assert len(set(found.pieces)) == len(found.pieces)
