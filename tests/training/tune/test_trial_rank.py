"""What one rank does of a round of trials: short steps are repeated, and plans take turns."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from graphpipe.training.tune import trial_rank
from graphpipe.training.tune.racing import FIRST_TURNS
from graphpipe.training.tune.trial_rank import measured_steps, recorded_steps
from graphpipe.training.tune.tuned_model import TunedModelName


@dataclass
class Clock:
    """The seconds of this process, as the played pipelines advance them."""

    seconds: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    played = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: played.seconds)
    return played


@dataclass
class Played:
    """A pipeline whose steps take given seconds, one after the other, also in segments."""

    clock: Clock
    seconds: list[float]
    weights: str = "flush"
    slowest: float = 0.0
    """Of the other ranks."""
    recording: bool = False
    segments: list[int] = field(default_factory=list[int])
    _last: float = 0.0

    @property
    def plan(self) -> Any:
        return SimpleNamespace(weights=self.weights)

    @property
    def world(self) -> Any:
        return SimpleNamespace(exchange=lambda own: [own, self.slowest], barrier=lambda: None, rank=0)

    def segment(self, batches: list[Any]) -> None:
        self.segments.append(len(batches))
        self._last = sum(self.seconds.pop(0) for _ in batches)
        self.clock.seconds += self._last

    def trace(self) -> Any:
        assert self.recording
        return SimpleNamespace(step_seconds=self._last)


def measured(pipeline: Any, steps: int) -> list[float]:
    return measured_steps(pipeline, (None, None), steps)


def test_long_steps_are_measured_as_they_are(clock: Clock) -> None:
    assert measured(Played(clock, [0.5, 2.0]), 2) == [0.5, 2.0]


def test_short_steps_are_repeated_for_half_a_second(clock: Clock) -> None:
    """Two steps of 30 ms told nothing about a plan: such bursts differed by a factor of 1.7."""
    pipeline = Played(clock, [0.25, 0.375, 0.125, 0.25, 0.375, 0.25])
    assert measured(pipeline, 2) == pytest.approx([0.3125, 0.25])
    assert pipeline.segments == [1, 1, 1, 3]


def test_the_slowest_rank_says_how_often(clock: Clock) -> None:
    """And how long."""
    assert measured(Played(clock, [0.1, 0.3], slowest=0.3), 1) == pytest.approx([0.3])


def test_a_segment_is_followed_by_another_one(clock: Clock) -> None:
    pipeline = Played(clock, [0.1] * 5, weights="stash")
    assert measured(pipeline, 2) == pytest.approx([0.1])
    assert pipeline.segments == [2, 3]


def test_steps_are_recorded_for_half_a_second(clock: Clock) -> None:
    """One step of a pipeline that flushes, and a segment of another one, is a trace."""
    pipeline: Any = Played(clock, [0.2] * 9)
    assert len(recorded_steps(pipeline, (None, None))) == 3
    assert not pipeline.recording
    late: Any = Played(clock, [0.2] * 9, weights="stash")
    assert len(recorded_steps(late, (None, None))) == 2
    assert late.segments == [FIRST_TURNS] * 2


def _turns(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], *, race: bool, steps: int = 4, lasts: float = 60.0
) -> tuple[list[str], Any]:
    """Return which plans ran, in order, and the runners of a round."""
    ran = list[str]()

    def run(pipeline: Any, batch: Any, steps: int) -> list[float]:
        ran.append(pipeline.name)
        return [seconds[pipeline.name]] * steps

    monkeypatch.setattr(trial_rank, "measured_steps", run)
    world = SimpleNamespace(exchange=lambda own: [own])
    flushing = SimpleNamespace(weights="flush")
    runners: Any = [
        SimpleNamespace(pipeline=SimpleNamespace(name=name, plan=flushing, world=world), batch=None, seconds=[took])
        for name, took in seconds.items()
    ]
    plans: Any = tuple(seconds)
    subject = TunedModelName(batch_size=1)
    trials = trial_rank.TrialRound(subject=subject, plans=plans, steps=steps, seconds=lasts, together=True, race=race)
    trial_rank.take_turns(runners, trials, time.monotonic() + lasts)
    return ran, runners


def test_each_turn_begins_with_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans ran one after the other, and one that was kept as the fastest was 24 % behind later.

    The recorded steps of a plan count as its first.
    """
    ran, _ = _turns(monkeypatch, {"a": 1.0, "b": 2.0, "c": 3.0}, race=False)
    assert "".join(ran) == "abc" + "bca" + "cab"


def test_the_slower_plans_of_a_race_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four, two go on after two turns, of which the first was recorded."""
    ran, runners = _turns(monkeypatch, {"a": 4.0, "b": 2.0, "c": 1.0, "d": 3.0}, race=True, steps=14)
    assert [len(runner.seconds) for runner in runners] == [2, 6, 6, 2]
    assert set(ran[4:]) == {"b", "c"}


def test_no_turn_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, _ = _turns(monkeypatch, {"a": 1.0, "b": 2.0}, race=True, lasts=-1.0)
    assert ran == ["a", "b"]
