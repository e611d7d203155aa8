"""What one rank does of a round of trials: short steps are repeated."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from graphpipe.training.tune.trial_rank import measured_steps


@dataclass
class Played:
    """A pipeline whose steps take given seconds, one after the other, also in segments."""

    seconds: list[float]
    weights: str = "flush"
    slowest: float = 0.0
    """Of the other ranks."""
    recording: bool = True
    segments: list[int] = field(default_factory=list[int])
    _last: float = 0.0

    @property
    def plan(self) -> Any:
        return SimpleNamespace(weights=self.weights)

    @property
    def world(self) -> Any:
        return SimpleNamespace(exchange=lambda own: [own, self.slowest])

    def step(self, *batch: object) -> None:
        self.segment([batch])

    def segment(self, batches: list[Any]) -> None:
        self.segments.append(len(batches))
        self._last = sum(self.seconds.pop(0) for _ in batches)

    def trace(self) -> Any:
        return SimpleNamespace(step_seconds=self._last)


def measured(pipeline: Any, steps: int) -> list[float]:
    traces, seconds = measured_steps(pipeline, (None, None), steps)
    assert len(traces) == len(pipeline.segments)
    return seconds


def test_long_steps_are_measured_as_they_are() -> None:
    assert measured(Played([0.5, 2.0]), 2) == [0.5, 2.0]


def test_short_steps_are_repeated_for_half_a_second() -> None:
    """Two steps of 30 ms told nothing about a plan: such bursts differed by a factor of 1.7."""
    assert measured(Played([0.2, 0.3, 0.1, 0.4, 0.2]), 2) == pytest.approx([0.2, 0.3])


def test_the_slowest_rank_says_how_often() -> None:
    assert measured(Played([0.1, 0.3], slowest=0.3), 1) == pytest.approx([0.2])


def test_a_segment_is_followed_by_another_one() -> None:
    pipeline = Played([0.1] * 5, weights="stash")
    assert measured(pipeline, 2) == pytest.approx([0.1])
    assert pipeline.segments == [2, 3]
