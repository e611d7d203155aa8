"""Pieces of work in processes of their own: how each ends, and that it ends alone."""

import multiprocessing
from pathlib import Path

from parallel_work import work

from graphpipe.cli.run_in_parallel import race


def test_every_piece_of_work_ends_alone_and_in_its_own_way() -> None:
    told: list[str] = []
    names = ["a", "raise no luck", "die 7", "sleep 60", "b"]
    ends = race(names, work, timeout=0.5, at_once=2, ended=told.append)
    assert [end.how for end in ends] == ["done", "raised", "died", "timeout", "done"]
    assert [end.what for end in ends[:1] + ends[2:]] == ["A", 7, None, "B"]
    assert isinstance(ends[1].what, ValueError)
    assert str(ends[1].what) == "no luck"
    assert sorted(told) == sorted(names)
    assert multiprocessing.active_children() == []


def test_work_goes_on_side_by_side(tmp_path: Path) -> None:
    ends = race([f"meet {tmp_path}"] * 2, work, timeout=20, at_once=2)
    assert [end.how for end in ends] == ["done", "done"]


def test_one_at_a_time_is_one_at_a_time(tmp_path: Path) -> None:
    ends = race([f"meet {tmp_path}"] * 2, work, timeout=0.3, at_once=1)
    # The second finds what the first, ended by the limit, has left behind.
    assert [end.how for end in ends] == ["timeout", "done"]
