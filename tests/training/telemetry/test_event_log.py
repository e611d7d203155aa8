"""Event files: what is read back, and what is refused."""

import json
import time
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.run.step.recorder import Doing
from graphpipe.training.telemetry.event import EndEvent, FailureEvent, Line, StepEvent
from graphpipe.training.telemetry.event_log import events_file, failure, open_events, read_events

STEP = StepEvent(step=1, loss=0.5, seconds=0.25, samples_per_second=64.0)


def test_events_are_in_the_file_at_once_and_read_back(tmp_path: Path) -> None:
    before = time.time()
    with open_events(tmp_path, 3) as log:
        log.write(STEP)
        (line,) = read_events(events_file(tmp_path, 3))  # another process would see it now
        assert before <= line.unix_seconds <= time.time()
        assert line == Line(rank=3, unix_seconds=line.unix_seconds, event=STEP)
    with open_events(tmp_path, 3) as log:
        log.write(EndEvent(step=1))
    assert [line.event for line in read_events(events_file(tmp_path, 3))] == [STEP, EndEvent(step=1)]
    first = json.loads(events_file(tmp_path, 3).read_text().splitlines()[0])
    assert first.keys() >= {"schema_version", "event", "rank", "unix_seconds"}


def test_half_a_line_of_a_killed_rank_is_dropped(tmp_path: Path) -> None:
    with open_events(tmp_path, 0) as log:
        log.write(STEP)
    path = events_file(tmp_path, 0)
    with path.open("a") as file:
        file.write('{"schema_version": 1, "ev')
    assert [line.event for line in read_events(path)] == [STEP]
    with open_events(tmp_path, 0) as log:
        log.write(EndEvent(step=1))
    assert [line.event for line in read_events(path)] == [STEP, EndEvent(step=1)]


def test_a_new_kind_of_event_is_passed_over_and_a_new_version_is_not(tmp_path: Path) -> None:
    with open_events(tmp_path, 0) as log:
        log.write(STEP)
    path = events_file(tmp_path, 0)
    head = {"rank": 0, "unix_seconds": 1.0}
    with path.open("a") as file:
        print(json.dumps({"schema_version": 1, "event": "eclipse", **head}), file=file)
    assert [line.event for line in read_events(path)] == [STEP]
    with path.open("a") as file:
        print(json.dumps({"schema_version": 2, "event": "end", "step": 1, **head}), file=file)
    with pytest.raises(InvalidInput, match=r"rank-0\.jsonl, line 3: is not an event of schema version 1"):
        read_events(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 1: is not JSON"),
        ("[]", "line 1: is not an event of schema version 1"),
        ('{"schema_version": 1, "event": "end", "rank": 0, "unix_seconds": 1, "stop": 1}', "line 1, field event.end"),
    ],
)
def test_what_is_no_event_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "events").mkdir()
    events_file(tmp_path, 0).write_text(f"{line}\n")
    with pytest.raises(InvalidInput, match=sentence):
        read_events(events_file(tmp_path, 0))


def test_failures_outside_any_task_have_none() -> None:
    stages = ("a", "b")
    assert failure(KeyError("x"), 3, None, stages) == FailureEvent(
        step=3, error="KeyError", message="'x'", task=None, stage=None, micro_batch=None, traceback="KeyError: 'x'\n"
    )
    found = failure(KeyError("x"), 3, Doing("reduce", 1, -1), stages)
    assert (found.task, found.stage, found.micro_batch) == ("reduce", "b", None)
