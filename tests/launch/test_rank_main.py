"""The program of a rank: what it leaves for its launcher."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.launch.rank_main import run_as_rank


def test_the_file_of_an_error_is_complete_when_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher read the file of a rank that it had stopped in the middle of writing, and ended with a traceback."""
    file, dump = tmp_path / "error.json", json.dump
    seen: list[bool] = []

    def watched(*arguments: Any, **options: Any) -> None:
        dump(*arguments, **options)
        seen.append(file.exists())

    def work() -> None:
        raise OverflowError("too large")

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setattr(json, "dump", watched)
    assert run_as_rank(work) == 1
    assert seen == [False]
    assert json.loads(file.read_text())["message"]["message"] == "OverflowError: too large"
    assert [*tmp_path.iterdir()] == [file]


def test_a_rank_without_an_error_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert run_as_rank(lambda: None) == 0
    assert [*tmp_path.iterdir()] == []


def test_an_error_that_cannot_be_written_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk was full. The launcher read an empty file, and called it a bug in graphpipe."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work() -> None:
        raise InvalidInput("cannot be written", where="checkpoint")

    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setattr(json, "dump", full)
    assert run_as_rank(work) == 1
    assert not file.exists()
    assert "error: checkpoint: cannot be written" in capsys.readouterr().err
