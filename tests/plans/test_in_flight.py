"""Samples in flight of 1F1B on graphs (GraphPipe, algorithm 2), against numbers by hand."""

import pytest

from graphpipe.plans.in_flight import in_flight_samples


@pytest.mark.parametrize(
    ("batch", "sizes", "bursts", "successors", "expected"),
    [
        (8, [1, 1, 1], [1, 1, 1], [[1], [2], []], (3, 2, 1)),
        (16, [1, 2, 4], [1, 1, 1], [[1], [2], []], (10, 8, 4)),  # figure 5
        (16, [4, 2, 1], [1, 1, 1], [[1], [2], []], (8, 4, 1)),  # 1, 1 + 2 = 3 -> 4, 4 + 4 = 8
        (16, [3, 2], [1, 1], [[1], []], (6, 2)),  # 2 + 3 = 5, rounded up to two micro-batches of 3
        (16, [1, 1, 1, 1], [1, 1, 1, 1], [[1, 3], [2], [3], []], (4, 3, 2, 1)),  # the longer way counts
        (16, [1, 1, 4, 1], [1, 1, 1, 1], [[1, 2], [3], [3], []], (12, 2, 8, 1)),  # 1 + 4 = 5 -> 8; 8 + 4 = 12
        (16, [1, 1], [2, 3], [[1], []], (6, 3)),  # a sink holds one burst, and 3 + max(2, 3)
        (4, [1, 2, 4], [1, 1, 1], [[1], [2], []], (4, 4, 4)),  # at most the mini-batch
        (8, [2], [2], [[]], (4,)),
    ],
)
def test_algorithm_2(
    batch: int, sizes: list[int], bursts: list[int], successors: list[list[int]], expected: tuple[int, ...]
) -> None:
    assert in_flight_samples(batch, sizes, bursts, successors) == expected
