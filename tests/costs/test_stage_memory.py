"""The formula of a stage's memory: terms 1, 10, 100, ... so that the digits of a total show which were added."""

import numpy as np

from graphpipe.costs.stage_memory import StageMemory

MEMORY = StageMemory(
    state=1.0, saved=10.0, received=100.0, offloaded=1000.0, moving=3000.0, recomputed=10_000.0, temporary=200_000.0
)


def test_what_each_sample_keeps_and_what_only_a_task_holds() -> None:
    assert MEMORY.per_sample == 110
    assert MEMORY.transient == 210_000
    # The last samples in flight are offloaded: only those of two micro-batches are here.
    assert [MEMORY.resident(count) for count in (0, 2, 3, 4)] == [1, 2221, 3331, 3441]
    assert [MEMORY.total(count) for count in (2, 4)] == [212_221, 213_441]
    assert MEMORY.resident(2, arriving=0.25) == 2221.5
    assert MEMORY.total(2, arriving=0.25) == 212_221.5


def test_a_stage_has_only_what_it_is_given() -> None:
    plain = StageMemory(state=1.0, saved=10.0)
    assert (plain.resident(2), plain.total(2), plain.transient, plain.per_sample) == (21, 21, 0, 10)
    assert StageMemory(state=1.0, saved=10.0, offloaded=5.0).resident(2) == 21


def test_memory_from_sums_over_operators() -> None:
    none = StageMemory.summed(1.0, 10.0, recompute="none", samples=3.0, received=100.0, temporary=1000.0)
    assert none == StageMemory(state=1.0, saved=10.0, received=100.0, temporary=1000.0)
    full = StageMemory.summed(1.0, 10.0, recompute="full", samples=3.0, received=100.0, temporary=1000.0)
    assert full == StageMemory(state=1.0, saved=0.0, received=100.0, recomputed=30.0, temporary=1000.0)
    assert StageMemory.summed(1.0, 10.0, recompute="none", samples=3.0) == StageMemory(state=1.0, saved=10.0)
    many = StageMemory.summed(np.array([1.0, 2.0]), np.array([10.0, 20.0]), recompute="full", samples=3.0)
    assert many.total(np.array([5.0, 7.0])).tolist() == [31, 62]
