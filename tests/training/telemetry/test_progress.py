"""The progress of a training: a bar in a terminal, some lines in a pipe."""

import io
import sys

import pytest

from graphpipe.training.telemetry.progress import LINES, TrainProgress


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(steps: int, where: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", where)
    for name, value in {"TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    with TrainProgress(steps, shown=True) as progress:
        for step in range(steps):
            progress.advance(1.5 - step / 100, 20.0)
    return where.getvalue()


def test_a_terminal_gets_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    output = shown(40, Terminal(), monkeypatch)
    last = output.split("\r")[-1]
    assert "40/40" in last
    assert "loss 1.1100  20.0 samples/s" in last
    assert "\x1b[" in output  # colours and movements of the cursor
    assert "step 40/40" not in output


def test_a_pipe_gets_some_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(40, io.StringIO(), monkeypatch).splitlines()
    assert LINES <= len(lines) <= LINES + 2
    assert lines[0].startswith("step 1/40  loss 1.5000  20.0 samples/s  ")
    assert lines[-1].startswith("step 40/40  loss 1.1100  20.0 samples/s  0 s left")
    assert not any("\x1b" in line for line in lines)
