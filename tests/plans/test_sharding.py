"""Which samples a replica computes: by hand, and as a partition of the mini-batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.plans.sharding import SampleRange, count_micro_batches, sample_range


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
