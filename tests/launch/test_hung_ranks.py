"""A rank that hangs where no other rank waits for it is named and killed, at any point of its life."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_programs import FORKS
from processes import running_processes, still_running

from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.hung_ranks import Glimpse, HungRanks
from graphpipe.launch.launcher import launch
from graphpipe.launch.run_regrouping import Regroup

RANKS = Path(__file__).parents[1] / "support" / "ranks"
LIMIT = 10.0
BUSY = Glimpse(stopped=False, done=False, used_seconds=0.0)


class Clock:
    """Tells a time that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., dict[int, str]]:
    """Return a function that shows both ranks of a launch as they look after so many seconds."""
    clock = Clock()
    ranks = HungRanks(folder=tmp_path, count=2, limit_seconds=LIMIT, clock=clock)

    def look(seconds: float, *seen: Glimpse | None) -> dict[int, str]:
        clock.now = seconds
        present = {number: glimpse for number, glimpse in enumerate(seen) if glimpse}
        return ranks.note(present, others_ended=len(present) < len(seen))

    return look


def glimpse(*, stopped: bool = False, done: bool = False, used: float = 0.0) -> Glimpse:
    return Glimpse(stopped=stopped, done=done, used_seconds=used)


def test_a_rank_that_is_stopped_for_the_limit_without_a_break_hangs(watched: Callable[..., dict[int, str]]) -> None:
    stopped = glimpse(stopped=True)
    assert watched(0, stopped, BUSY) == watched(9, stopped, BUSY) == {}
    assert watched(9.5, BUSY, BUSY) == watched(10, stopped, BUSY) == watched(20, stopped, BUSY) == {}
    assert watched(20.1, stopped, BUSY) == {0: "was stopped (SIGSTOP) for 10 s, so it was killed"}


def test_a_rank_that_waits_for_others_does_not_hang(watched: Callable[..., dict[int, str]]) -> None:
    assert watched(0, BUSY, BUSY) == watched(1000, BUSY, BUSY) == {}


def test_the_last_rank_hangs_if_it_uses_no_processor(watched: Callable[..., dict[int, str]]) -> None:
    """It saves the results, or sends them to a logger's server, for as long as that takes."""
    assert watched(0, glimpse(used=1), BUSY) == watched(100, glimpse(used=1), None) == {}
    assert watched(109, glimpse(used=2), None) == watched(118, glimpse(used=2), None) == {}
    assert watched(120, glimpse(used=2), None) == {
        0: "did nothing for 10 s after other ranks had ended, so it was killed"
    }


def test_a_rank_that_waits_for_its_disk_does_not_hang(watched: Callable[..., dict[int, str]]) -> None:
    """A write to a slow file system uses no processor. The results would be lost."""
    writes = Glimpse(stopped=False, done=False, used_seconds=1, waits_for_disk=True)
    assert watched(0, writes, BUSY) == watched(1, writes, None) == watched(1000, writes, None) == {}
    assert watched(1001, glimpse(used=1), None) == watched(1010, glimpse(used=1), None) == {}
    assert list(watched(1012, glimpse(used=1), None)) == [0]


def test_a_rank_that_ends_before_it_is_found_has_ended(tmp_path: Path) -> None:
    """On a busy machine it was not counted: a peer that did nothing from then on was never killed."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "begun-0").write_text(str(ended.pid))
    clock = Clock()
    ranks = HungRanks(folder=tmp_path, count=2, limit_seconds=LIMIT, clock=clock)
    program = "print('begun', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle:
        assert idle.stdout is not None
        idle.stdout.readline()
        for clock.now in (0.0, LIMIT, 3 * LIMIT):
            ranks.look({1: idle.pid})
        assert list(ranks.killed) == [1]
    assert ranks.failed()


def test_a_rank_that_has_done_its_work_is_killed_after_those_that_work(watched: Callable[..., dict[int, str]]) -> None:
    """The launch ends when a rank is killed. A peer that still saved the results would lose them."""
    done, stopped = glimpse(done=True), glimpse(done=True, stopped=True)
    for other in (done, stopped):
        assert watched(0, BUSY, other) == watched(50, BUSY, other) == {}
    late = "had not ended 10 s after its work was done, so it was killed"
    assert watched(60, done, None) == {}
    assert watched(71, done, None) == {0: late}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphpipe.launch.launcher.MARGIN_SECONDS", 0.0)
    monkeypatch.setenv("PYTHONPATH", f"{RANKS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def no_ranks_are_left(folder: Path) -> bool:
    return still_running(running_processes([int((folder / rank).read_text()) for rank in "01"]), 5) == []


PATIENCE = 1.0 if FORKS else 5.0
"""Seconds. A plain process takes longer to end than a fork does."""
REGROUPS: list[Regroup | None] = [None, lambda failure, steps: False]


@pytest.mark.usefixtures("forked_ranks", "at_once")
@pytest.mark.parametrize("regroup", REGROUPS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "stopped at the end",
            f"rank 1: was stopped (SIGSTOP) for {PATIENCE:g} s, so it was killed. All ranks had done their work",
        ),
        (
            "late at the end",
            f"rank 1: had not ended {PATIENCE:g} s after its work was done, so it was killed. All ranks had done",
        ),
    ],
)
def test_a_rank_that_hangs_while_its_process_ends_does_not_spoil_the_results(
    how: str, said: str, regroup: Regroup | None, tmp_path: Path
) -> None:
    """SIGSTOP reached a rank after all results were written, and the launcher waited without any limit."""
    with pytest.warns(UserWarning, match="its work was done|SIGSTOP") as warned:
        launch("run_jobs:hang", 2, arguments=[str(tmp_path), how], regroup=regroup, timeout_seconds=PATIENCE)
    assert [str(each.message).startswith(said) for each in warned] == [True]
    assert no_ranks_are_left(tmp_path)


@pytest.mark.usefixtures("forked_ranks", "at_once")
@pytest.mark.parametrize("regroup", REGROUPS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("all stopped", r"^rank \d: was stopped \(SIGSTOP\) for 1 s, so it was killed\."),
        ("idle", r"^rank 1: did nothing for 1 s after other ranks had ended, so it was killed\."),
    ],
)
def test_a_rank_that_hangs_before_its_work_is_done_fails(
    how: str, said: str, regroup: Regroup | None, tmp_path: Path
) -> None:
    """Nobody waited for it: all ranks were stopped, or the others had ended."""
    with pytest.raises(RankFailed, match=said):
        launch("run_jobs:hang", 2, arguments=[str(tmp_path), how], regroup=regroup, timeout_seconds=1.0)
    assert no_ranks_are_left(tmp_path)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("regroup", REGROUPS)
def test_a_process_that_is_stopped_before_it_is_a_rank_is_named(regroup: Regroup | None) -> None:
    program = "import os, signal; os.environ['RANK'] == '0' or os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(RankFailed, match=r"^rank 1: was stopped \(SIGSTOP\) for 0.5 s, so it was killed\."):
        launch([sys.executable, "-S", "-c", program], 2, regroup=regroup, timeout_seconds=0.5)
