"""What is shown while ranks start ends with their first status, or with the launch."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphpipe.launch.await_ranks import waiting_for_ranks
from graphpipe.run.faults.rank_status import STATUS_FOLDER, StatusWriter
from graphpipe.waiting import Advance, shown_by


def test_it_ends_with_the_first_status_or_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def display(what: str) -> Generator[Advance]:
        seen.append(what)
        yield lambda _: None
        seen.append("ended")

    monkeypatch.setenv(STATUS_FOLDER, str(tmp_path))
    with shown_by(display), waiting_for_ranks(tmp_path, 4):
        wait_until(lambda: seen == ["starting 4 processes"])
        StatusWriter(0, ["s0"])
        wait_until(lambda: seen[1:] == ["ended"])
    seen.clear()
    (tmp_path / "empty").mkdir()
    with shown_by(display), waiting_for_ranks(tmp_path / "empty", 2):
        wait_until(lambda: bool(seen))
        assert "ended" not in seen
    assert seen[-1] == "ended"


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
