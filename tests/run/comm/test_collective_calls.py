"""A rank that works is waited for, however long it takes; one that is gone is not."""

from pathlib import Path

import pytest
from run_checkpoints import train_and_save
from run_collective_calls import LIMIT, resume_slowly, work_for
from run_ranks import run_ranks, values

LONG = 2.5 * LIMIT


def test_work_may_take_longer_than_a_silent_rank_is_waited_for(tmp_path: Path) -> None:
    assert values(run_ranks(work_for, 3, tmp_path, LONG)) == [[0, 1, 2]] * 3


def test_a_checkpoint_may_take_longer_to_check_than_a_silent_rank_is_waited_for(tmp_path: Path) -> None:
    # "another rank did not answer within the time limit", whenever it was tried.
    folder = str(tmp_path / "checkpoints")
    values(run_ranks(train_and_save, 2, tmp_path / "first", "shared", folder, [2], {}))
    found = values(run_ranks(resume_slowly, 2, tmp_path / "second", folder, LONG))
    assert [rank["step"] for rank in found] == [2, 2]


@pytest.mark.parametrize(("end", "kind"), [("SIGKILL", "PeerLost"), ("SIGSTOP", "PeerStalled")])
def test_a_rank_that_is_lost_while_it_works_is_missed_in_time(end: str, kind: str, tmp_path: Path) -> None:
    working, waiting = run_ranks(work_for, 2, tmp_path, LONG, end)
    assert working.exitcode == -9
    assert waiting.error.startswith(kind)
    assert waiting.seconds < LONG + LIMIT + 20  # the last is for a busy machine
