"""Ranks that lose a peer leave, and go on in the same processes only if all of them did the same steps."""

import os
from pathlib import Path

import pytest

from graphpipe.launch import run_regrouping
from graphpipe.launch.first_failure import RankFailed
from graphpipe.launch.launcher import launch
from graphpipe.launch.run_regrouping import IdleRanks

RANKS = Path(__file__).parents[1] / "support" / "ranks"


@pytest.fixture(autouse=True)
def jobs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{RANKS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


class Launcher:
    """Notes what it was asked.

    Args:
        answers: whether the ranks go on.
    """

    def __init__(self, *answers: bool) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self._answers = iter(answers)

    def regroup(self, failure: RankFailed, steps: int) -> bool:
        self.asked.append((failure.failed, steps))
        return next(self._answers)


@pytest.mark.usefixtures("forked_ranks")
def test_processes_keep_their_numbers_and_get_new_ranks(tmp_path: Path) -> None:
    launcher = Launcher(True, True)
    launch("run_jobs:regroup", 4, arguments=[str(tmp_path), "1,2", "7,7,7,7"], regroup=launcher.regroup)
    # Process 2 is rank 1 once process 1 is lost.
    assert launcher.asked == [((1,), 7), ((1,), 7)]
    generations = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert generations == {"0": ["0/4", "0/3", "0/2"], "1": ["1/4"], "2": ["2/4", "1/3"], "3": ["3/4", "2/3", "1/2"]}


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("doomed", "steps", "answers", "asked"),
    [
        ("1", "7,7,8", [], 0),  # One rank has applied an update that another has not.
        ("1", "7,7,-1", [], 0),  # One rank is in the middle of an update.
        ("1", "7,7,7", [False], 1),
        ("1,2", "7,7,7", [True, False], 2),
    ],
)
def test_ranks_that_cannot_go_on_end_and_the_lost_rank_is_named(
    doomed: str, steps: str, answers: list[bool], asked: int, tmp_path: Path
) -> None:
    launcher = Launcher(*answers)
    with pytest.raises(RankFailed, match=r"^rank 1 .*was killed by SIGKILL") as caught:
        launch("run_jobs:regroup", 3, arguments=[str(tmp_path), doomed, steps], regroup=launcher.regroup)
    assert len(launcher.asked) == asked
    assert caught.value.failed == (1,)


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_hangs_is_not_left_behind(tmp_path: Path) -> None:
    launcher = Launcher()
    with pytest.raises(RankFailed, match=r"^rank 1 "):
        launch("run_jobs:regroup", 2, arguments=[str(tmp_path), "hang", "7,7"], regroup=launcher.regroup)
    assert not launcher.asked


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_is_stopped_is_lost_with_one_that_dies(tmp_path: Path) -> None:
    """The launcher waited half a minute for it, as for one that computes, and then all ranks started again."""
    launcher = Launcher(True)
    launch("run_jobs:regroup", 4, arguments=[str(tmp_path), "stop", "7,7,7,7"], regroup=launcher.regroup)
    assert launcher.asked == [((1, 2), 7)]
    assert {path.name: path.read_text().split() for path in tmp_path.iterdir()} == {
        "0": ["0/4", "0/2"],
        "1": ["1/4"],
        "2": ["2/4"],
        "3": ["3/4", "1/2"],
    }


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_sleeps_after_another_has_died_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher waited half a minute for it, although it used no processor."""
    monkeypatch.setattr(run_regrouping, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(run_regrouping, "LATE_SECONDS", 1000.0)
    launcher = Launcher()
    with pytest.raises(RankFailed, match=r"^rank 1 .*was killed by SIGKILL"):
        launch("run_jobs:regroup", 4, arguments=[str(tmp_path), "sleep", "7,7,7,7"], regroup=launcher.regroup)
    assert not launcher.asked


def test_a_rank_is_idle_as_long_as_its_processor_time_stays() -> None:
    clock = iter((0.0, 1.0, 3.0, 4.0, 9.0, 10.0, 11.0))
    idle = IdleRanks(clock=lambda: next(clock))
    assert idle.seconds({}) == 0.0
    assert idle.seconds({0: 0.5, 1: 2.0}) == 0.0
    assert idle.seconds({0: 0.5, 1: 2.1}) == 2.0
    assert idle.seconds({0: 0.6, 1: 2.1}) == 1.0
    assert idle.seconds({0: 0.6, 2: 0.0}) == 5.0
    assert idle.seconds({2: 0.0}) == 1.0
    assert idle.seconds({0: 0.6, 2: 0.1}) == 0.0  # Rank 0 waited for a disk meanwhile.
