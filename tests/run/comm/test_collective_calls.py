"""Ranks wait for a working rank without a limit, but not for a rank that is gone."""

from pathlib import Path

import pytest
from run_checkpoints import train_and_save
from run_collective_calls import LIMIT, compute_past_limit, resume_slowly
from run_ranks import run_ranks, values

LONG = 2.5 * LIMIT


def test_work_may_take_longer_than_the_time_limit(tmp_path: Path) -> None:
    assert values(run_ranks(compute_past_limit, 3, tmp_path, LONG)) == [[0, 1, 2]] * 3


def test_checking_a_checkpoint_may_take_longer_than_the_time_limit(tmp_path: Path) -> None:
    # "another rank did not answer within the time limit", whenever it was tried.
    folder = str(tmp_path / "checkpoints")
    values(run_ranks(train_and_save, 2, tmp_path / "first", "shared", folder, [2], {}))
    found = values(run_ranks(resume_slowly, 2, tmp_path / "second", folder, LONG))
    assert [rank["step"] for rank in found] == [2, 2]


@pytest.mark.parametrize(("end", "kind"), [("SIGKILL", "PeerLost"), ("SIGSTOP", "PeerStalled")])
def test_a_rank_lost_during_its_work_is_detected_within_the_time_limit(end: str, kind: str, tmp_path: Path) -> None:
    working, waiting = run_ranks(compute_past_limit, 2, tmp_path, LONG, end)
    assert working.exitcode == -9
    assert waiting.error.startswith(kind)
    assert waiting.seconds < LONG + LIMIT + 20  # the last is for a busy machine
