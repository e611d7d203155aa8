"""A rank that has become slow is named once."""

from pathlib import Path

import pytest

import graphpipe as gp
from graphpipe.run.faults import injector, rank_status
from graphpipe.training.config.from_toml import read_config
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.task.task import load_task
from graphpipe.training.telemetry.event import PaceEvent, SlowEvent
from graphpipe.training.telemetry.event_log import read_events
from graphpipe.training.telemetry.slow_rank import STEPS, SlowRankWatch
from graphpipe.training.train_rank import train_rank


def slow_steps(watch: SlowRankWatch, *seconds: float) -> list[int]:
    return [step for step, each in enumerate(seconds, 1) if watch.note(step, each) is not None]


def test_a_rank_is_slow_after_several_steps_that_take_three_times_as_long() -> None:
    usual, slow = [1.0] * STEPS, [3.1] * STEPS
    assert slow_steps(SlowRankWatch(predicted_seconds=0.1), *usual, *slow, *slow) == [2 * STEPS]
    assert slow_steps(SlowRankWatch(predicted_seconds=0.1), *usual, *slow[1:], 1.0, *slow[1:]) == []
    assert slow_steps(SlowRankWatch(predicted_seconds=0.1), *usual, *slow, 1.0, *slow) == [2 * STEPS, 3 * STEPS + 1]
    # It is as fast as predicted; it was as slow from the start; it has not become slower than before by much.
    assert slow_steps(SlowRankWatch(predicted_seconds=1.1), *usual, *slow) == []
    assert slow_steps(SlowRankWatch(predicted_seconds=0.1), *slow, *slow) == []
    assert slow_steps(SlowRankWatch(predicted_seconds=0.0), *[0.01] * STEPS, *[0.1] * STEPS) == []


def test_the_steps_of_a_segment_count_each() -> None:
    watch = SlowRankWatch(predicted_seconds=0.1)
    assert watch.note(STEPS, 1.0, steps=STEPS) is None
    event = watch.note(2 * STEPS, 4.0, steps=STEPS)
    assert event == SlowEvent(step=2 * STEPS, steps=STEPS, seconds=4.0, before_seconds=1.0, predicted_seconds=0.1)


def test_a_rank_says_once_how_fast_its_first_steps_were() -> None:
    watch = SlowRankWatch(predicted_seconds=0.1)
    told: list[PaceEvent | None] = []
    for step, seconds in enumerate((9.0, 1.0, 1.2, 1.1, 1.3, 1.0, 1.0), 1):  # The first one warms up.
        watch.note(step, seconds)
        told.append(watch.pace(step))
    assert told == [*[None] * 4, PaceEvent(step=5, steps=5, seconds=1.2, predicted_seconds=0.1), None, None]


class Clock:
    """A clock that passes a millisecond whenever somebody looks, and sleeps at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-3
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_training_names_the_rank_its_stages_and_how_slow_it_is(
    config: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in (rank_status, injector):
        monkeypatch.setattr(module, "time", clock)
    faults = [f"slow@rank0:step{step}:phase=backward:seconds=9" for step in range(7, 7 + STEPS)]
    settings = read_config(config, [f"train.steps={6 + STEPS}", f"train.faults={faults}"])
    task = load_task(settings.task, settings.folder, settings.train.seed)
    graph, cluster = gp.capture(task.module, task.example_inputs), gp.Cluster.preset("local:1")
    plan = gp.plan(graph, gp.estimate(graph, cluster), cluster, batch_size=settings.train.batch_size)
    folder = RunFolder(Path("run"))
    folder.path.mkdir()
    assert train_rank(settings, task, plan, folder) is not None
    (event,) = [line.event for line in read_events(folder.events(0)) if isinstance(line.event, SlowEvent)]
    assert (event.step, event.steps) == (6 + STEPS, STEPS)
    # Each status passes a millisecond: the forwards and backwards of a step, and only they, count.
    tasks = 2 * plan.batch_size // plan.stages[0].micro_batch
    assert event.before_seconds == pytest.approx(tasks * 1e-3)
    assert 9 < event.seconds < 9.01
    (pace,) = [line.event for line in read_events(folder.events(0)) if isinstance(line.event, PaceEvent)]
    assert (pace.step, pace.seconds, pace.predicted_seconds) == (STEPS, event.before_seconds, event.predicted_seconds)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "has become slow" in line]
    assert line.startswith("rank 0 (host ")
    assert f", stage '{plan.stages[0].name}') has become slow: in each of the last {STEPS} steps" in line
