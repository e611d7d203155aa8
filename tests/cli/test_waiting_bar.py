"""What a terminal shows while something takes a while, and that nothing else is shown."""

import io
import sys

import pytest

from graphpipe.cli.waiting_bar import waiting_bar
from graphpipe.waiting import shown_by, waiting


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_only_a_terminal_shows_the_work_and_the_share_that_is_done(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    error, out = Terminal() if terminal else io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(sys, "stdout", out)
    with shown_by(waiting_bar), waiting("profiling 16 operators") as advance:
        print("the user's own line")
        advance(0.25)
    assert ("profiling 16 operators" in error.getvalue()) == terminal
    assert ("left" in error.getvalue()) == terminal
    assert out.getvalue() == "the user's own line\n"  # also while a bar is shown: it may be a file or a pipe
    assert terminal or not error.getvalue()


def test_a_program_sees_nothing_and_a_display_ends_with_its_block() -> None:
    seen: list[str] = []

    def display(what: str):
        seen.append(what)
        return waiting_bar(what)

    with shown_by(display), waiting("first"):
        pass
    with waiting("second") as advance:
        advance(1.0)
    assert seen == ["first"]
