"""Samples in flight of 1F1B on graphs (GraphPipe, algorithm 2), against numbers by hand."""

from math import inf

import numpy as np
import pytest

from graphpipe.plans.in_flight import (
    delay_of,
    forward_in_flight,
    in_flight_samples,
    most_in_flight_of,
    versions_of,
)
from graphpipe.plans.stage import Predictor, WeightPolicy


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


@pytest.mark.parametrize(
    ("batch", "sizes", "edges", "expected"),
    [
        (8, [1, 1, 1], [(0, 1), (1, 2)], (3, 3, 3)),  # computed, sent, and waiting to be read
        (2, [1, 1, 1], [(0, 1), (1, 2)], (2, 2, 2)),  # at most the mini-batch
        (100, [2, 3], [(0, 1)], (10, 9)),  # 3 times 3, rounded up to micro-batches of 2
        (100, [3, 2], [(0, 1)], (9, 10)),
        (100, [1, 1, 1], [(0, 2), (1, 2), (0, 1)], (4, 3, 4)),  # an edge over another stage holds one more
        (100, [1, 1, 1, 5], [(0, 1), (1, 2), (0, 2)], (4, 3, 4, 5)),  # a stage without edges
        (100, [1, 4, 1], [(0, 1), (0, 2)], (12, 12, 3)),  # the largest edge counts
    ],
)
def test_samples_in_flight_without_training(
    batch: int, sizes: list[int], edges: list[tuple[int, int]], expected: tuple[int, ...]
) -> None:
    assert forward_in_flight(batch, sizes, edges) == expected


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("flush", [0, 0, 0, 0]),
        ("double-buffer", [1, 1, 1, 1]),
        *[(policy, [0, 1, 1, 2]) for policy in ("stash", "vertical-sync", "predict", "moving-average")],
    ],
)
def test_the_delay_counts_mini_batches_ahead_of_the_first_backward(weights: WeightPolicy, expected: list[int]) -> None:
    # Micro-batches of 2 in mini-batches of 4: 0, 2, 4 and 6 samples are ahead.
    in_flight = [2, 4, 6, 8]
    assert [delay_of(weights, held, 2, 4) for held in in_flight] == expected
    found = delay_of(weights, np.array(in_flight, dtype=np.float64), np.full(4, 2.0), 4)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("weights", "predictor", "expected"),
    [
        *[(each, "", [1, 2, 3]) for each in ("stash", "vertical-sync", "double-buffer", "flush")],
        ("moving-average", "", [1, 3, 3]),
        ("predict", "spectrain", [2, 2, 2]),
        ("predict", "xpipe", [1, 2, 2]),
        ("predict", "pipeoptim", [1, 2, 2]),
        ("stash", "spectrain", [1, 2, 3]),
    ],
)
def test_versions_of_weights_held_at_once(weights: WeightPolicy, predictor: Predictor, expected: list[int]) -> None:
    assert [versions_of(weights, predictor, delay) for delay in range(3)] == expected
    assert versions_of(weights, predictor, np.arange(3.0)).tolist() == expected


def test_most_samples_in_flight() -> None:
    without_flush = "stash", "vertical-sync", "predict", "moving-average"
    assert [most_in_flight_of(each, 6, 3) for each in ("flush", "double-buffer")] == [6, 9]
    assert [most_in_flight_of(each, 8, 2) for each in without_flush] == [inf] * 4
