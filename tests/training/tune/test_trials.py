"""Rounds of trials: what the ranks write is read, and a plan that fails does not end the others."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import Part, make_plan

from graphpipe.files.json_body import from_body
from graphpipe.launch.first_failure import RankFailed
from graphpipe.simulator import predict
from graphpipe.simulator.simulate import simulate
from graphpipe.training.tune import trials as trials_room
from graphpipe.training.tune.candidates import Candidate
from graphpipe.training.tune.racing import FEW_TURNS, MOST_TURNS
from graphpipe.training.tune.trial_rank import TrialRound
from graphpipe.training.tune.trials import Trials
from graphpipe.training.tune.tuned_model import TunedModelName

rounds: list[tuple[bool, int]] = []
"""Of each launch: whether plans take turns, and the steps."""


def _trials(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: Sequence[int] = (), seconds: float = 1e9) -> Trials:
    """Return trials of three plans whose ranks are played by this process."""
    monkeypatch.setattr(trials_room, "save_capture", lambda captured, path: Path(path).write_text("{}"))
    monkeypatch.setattr(trials_room, "split_like", lambda captured, graph: captured)
    captured: Any = None
    trials = Trials(
        subject=TunedModelName(model="two-tower-small", batch_size=8),
        captured=captured,
        folder=folder,
        ends_at=seconds,
        tell=lambda line: None,
    )
    for size in (1, 2, 4):
        plan = make_plan([Part(micro_batch=size), Part(micro_batch=size)])
        trials.add(Candidate(plan=replace(plan, prediction=predict(plan)), asked=f"micro_batch {size}"))

    rounds.clear()

    def launch(entry: str, ranks: int, *, arguments: Sequence[str], **_: object) -> None:
        assert ranks == 2
        given = from_body(TrialRound, json.loads(Path(arguments[0]).read_text()), "round")
        rounds.append((given.together, given.steps))
        numbers = [int(Path(files.plan).stem.split("-")[1]) for files in given.plans]
        if given.together and set(numbers) & set(failing):  # nothing is written before all have run
            raise RankFailed(1, "out of memory", kind="OutOfMemory", host="", seen=0.0, failed=(1,))
        for number, files in zip(numbers, given.plans, strict=True):
            if number in failing:
                raise RankFailed(1, "out of memory", kind="OutOfMemory", host="", seen=0.0, failed=(1,))
            trace = simulate(trials.candidates[number].plan)
            replace(trace, source="measured").save(files.trace)
            Path(files.steps).write_text(json.dumps([trace.step_seconds] * given.steps))

    monkeypatch.setattr(trials_room, "launch", launch)
    return trials


def test_steps_and_traces_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of a round are those that its ranks wrote, once."""
    trials = _trials(tmp_path, monkeypatch)
    found = trials.measure([0, 2], 3)
    expected = [simulate(each.plan).step_seconds for each in trials.candidates]
    assert found == {0: [expected[0]] * 3, 2: [expected[2]] * 3}
    assert [run.plan.stages[0].micro_batch for run in trials.runs()] == [1, 4]
    assert [run.seconds for run in trials.runs()] == [expected[0], expected[2]]
    assert not list(tmp_path.glob("steps-*"))


def test_the_plans_after_one_that_fails_still_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed one is remembered with its error."""
    trials = _trials(tmp_path, monkeypatch, failing=[1])
    assert [*trials.measure([0, 1, 2], 2)] == [0, 2]
    assert "out of memory" in trials.failures[1]
    assert rounds == [(True, 2), (False, 2), (False, 2)]


def test_plans_that_do_not_fit_together_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three needs half of the devices' memory. Alone, they do a few steps."""
    trials = _trials(tmp_path, monkeypatch)
    for at, candidate in enumerate(trials.candidates):
        plan, half = candidate.plan, candidate.plan.cluster.smallest_memory_bytes / 2
        assert plan.prediction is not None
        held = replace(plan.prediction, peak_bytes=(half, half))
        trials.candidates[at] = replace(candidate, plan=replace(plan, prediction=held))
    assert [*trials.race([0, 1], MOST_TURNS)] == [0, 1]
    assert [*trials.race([0, 1, 2], MOST_TURNS)] == [0, 1, 2]
    assert rounds == [(True, MOST_TURNS), (False, FEW_TURNS)]


def test_nothing_begins_after_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is over before the round."""
    trials = _trials(tmp_path, monkeypatch, seconds=0.0)
    assert trials.measure([0, 1], 2) == {}
    assert trials.failures == {}
