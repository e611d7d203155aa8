"""Files of a run's folder are neither links nor pipes. A link made a training truncate or read files elsewhere."""

import os
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.files.json_lines import read_json_lines, remove_partial_line
from graphpipe.files.printable import check_printable, printable
from graphpipe.files.regular_file import append_text, open_regular, read_bytes
from graphpipe.run.faults.fault import parse_faults
from graphpipe.run.faults.injector import Injector
from graphpipe.training.run_folder.metrics_log import open_metrics_log, read_metrics_log
from graphpipe.training.run_folder.run_folder import RunFolder
from graphpipe.training.run_folder.run_lock import RunLock
from graphpipe.training.telemetry.event_log import open_event_log, read_events

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a folder in which the files of a run are links to a precious one."""
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    run = tmp_path / "run"
    (run / "events").mkdir(parents=True)
    for name in (".lock", "faults.jsonl", "recoveries.jsonl", "metrics.jsonl", "events/rank-0.jsonl"):
        (run / name).symlink_to(precious)
    return run


def test_links_are_refused_and_what_they_lead_to_is_untouched(linked: Path) -> None:
    import torch

    folder = RunFolder(linked)
    with RunLock() as lock, pytest.raises(InvalidInput, match=r"\.lock: is a link, must be a file"):
        lock.take(folder)
    for read in (lambda: [*read_json_lines(folder.recoveries)], lambda: read_metrics_log(folder.metrics_log)):
        with pytest.raises(InvalidInput, match="is a link"):
            read()
    with pytest.raises(InvalidInput, match="is a link"), open_event_log(folder, 0):
        pass
    with pytest.raises(InvalidInput, match="is a link"):
        read_events(folder.events(0))
    with pytest.raises(InvalidInput, match="is a link"):
        Injector.of(parse_faults(["kill@rank0:step1"]), 0, torch.device("cpu"), folder.faults)
    assert (linked.parent / "precious").read_text() == "precious\n"
    with open_metrics_log(folder.metrics_log, []):  # it is replaced as a whole
        assert not folder.metrics_log.is_symlink()


def test_a_folder_of_events_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "events").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(InvalidInput, match="events: is a link, must be a folder"),
        open_event_log(RunFolder(tmp_path), 0),
    ):
        pass
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """Reading metrics.jsonl hung."""
    os.mkfifo(tmp_path / "pipe")
    for attempt in (
        lambda: read_bytes(tmp_path / "pipe"),
        lambda: append_text(tmp_path / "pipe"),
        lambda: read_metrics_log(tmp_path / "pipe"),
        lambda: open_regular(tmp_path, os.O_RDONLY),
        lambda: open_regular(tmp_path, os.O_RDWR),
    ):
        with pytest.raises(InvalidInput, match="is not a file"):
            attempt()


def test_lines_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    """They ended a command with a RecursionError."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("[" * 200_000 + "]" * 200_000 + "\n")
    with pytest.raises(InvalidInput, match="line 1: is nested too deeply"):
        read_metrics_log(path)


def test_a_partial_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"a": 1}\n{"a"')
    remove_partial_line(path)
    with append_text(path) as file:
        print('{"a": 2}', file=file)
    assert [body for _, body in read_json_lines(path)] == [{"a": 1}, {"a": 2}]


def test_control_characters_are_written_out_and_refused_in_names() -> None:
    assert printable("name\x1b[31m\nnext\ttab \x07") == "name\\x1b[31m\nnext\ttab \\x07"
    check_printable({"name": ["plain", 3, None, "Grüße\n"]}, "plan.json")
    with pytest.raises(InvalidInput, match=r"plan\.json: 'bad\\x1b\[2J' has control characters"):
        check_printable({"stages": [{"name": "bad\x1b[2J"}]}, "plan.json")
