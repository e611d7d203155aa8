"""Event files: lines that are read back, and lines that are refused."""

import json
import time
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.run.worker.recorder import CurrentWork
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.telemetry.event import EndEvent, EventLine, FailureEvent, StepEvent
from graphpipe.training.telemetry.event_log import failure_event, open_event_log, read_events, read_new_events

STEP = StepEvent(step=1, loss=0.5, seconds=0.25, samples_per_second=64.0)


def test_events_are_in_the_file_at_once_and_read_back(tmp_path: Path) -> None:
    before = time.time()
    with open_event_log(RunFolder(tmp_path), 3) as log:
        log.write(STEP)
        (line,) = read_events(RunFolder(tmp_path).events(3))  # another process would see it now
        assert before <= line.unix_seconds <= time.time()
        assert line == EventLine(rank=3, unix_seconds=line.unix_seconds, event=STEP)
    with open_event_log(RunFolder(tmp_path), 3) as log:
        log.write(EndEvent(step=1))
    assert [line.event for line in read_events(RunFolder(tmp_path).events(3))] == [STEP, EndEvent(step=1)]
    first = json.loads(RunFolder(tmp_path).events(3).read_text().splitlines()[0])
    assert first.keys() >= {"schema_version", "event", "rank", "unix_seconds"}


def test_a_truncated_line_of_a_killed_rank_is_dropped(tmp_path: Path) -> None:
    with open_event_log(RunFolder(tmp_path), 0) as log:
        log.write(STEP)
    path = RunFolder(tmp_path).events(0)
    with path.open("a") as file:
        file.write('{"schema_version": 1, "ev')
    assert [line.event for line in read_events(path)] == [STEP]
    with open_event_log(RunFolder(tmp_path), 0) as log:
        log.write(EndEvent(step=1))
    assert [line.event for line in read_events(path)] == [STEP, EndEvent(step=1)]


def test_only_what_was_written_since_is_read_and_of_the_kinds_that_are_wanted(tmp_path: Path) -> None:
    """A launcher that waits for rare events read all lines of a run twice a second, from the first one on."""
    path = RunFolder(tmp_path).events(0)
    with open_event_log(RunFolder(tmp_path), 0) as log:
        log.write(STEP)
        log.write(EndEvent(step=1))
        found, position = read_new_events(path, 0, ("end",))
        assert [line.event for line in found] == [EndEvent(step=1)]
        assert position == path.stat().st_size
        assert read_new_events(path, position) == ([], position)
        log.write(STEP)
        with path.open("a") as file:
            file.write('{"schema_version": 1, "event": "en')
        found, after = read_new_events(path, position)
        assert [line.event for line in found] == [STEP]
        with path.open("a") as file:
            file.write('d", "rank": 0, "unix_seconds": 1.0, "step": 2}\n')
    assert [line.event for line in read_new_events(path, after, ("end",))[0]] == [EndEvent(step=2)]
    with path.open("a") as file:
        file.write("end\n")
    with pytest.raises(InvalidInput, match=rf"rank-0\.jsonl, line 2 after byte {after}: is not JSON"):
        read_new_events(path, after)


def test_a_new_kind_of_event_is_skipped_and_a_new_version_is_refused(tmp_path: Path) -> None:
    with open_event_log(RunFolder(tmp_path), 0) as log:
        log.write(STEP)
    path = RunFolder(tmp_path).events(0)
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
def test_a_line_that_is_not_an_event_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "events").mkdir()
    RunFolder(tmp_path).events(0).write_text(f"{line}\n")
    with pytest.raises(InvalidInput, match=sentence):
        read_events(RunFolder(tmp_path).events(0))


def test_a_failure_outside_a_task_has_no_task() -> None:
    stages = ("a", "b")
    assert failure_event(KeyError("x"), 3, None, stages) == FailureEvent(
        step=3, error="KeyError", message="'x'", task=None, stage=None, micro_batch=None, traceback="KeyError: 'x'\n"
    )
    found = failure_event(KeyError("x"), 3, CurrentWork("reduce", 1, -1), stages)
    assert (found.task, found.stage, found.micro_batch) == ("reduce", "b", None)
