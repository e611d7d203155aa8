"""Calls in processes of their own: how each ends, without an effect on the others."""

import multiprocessing
from pathlib import Path

from parallel_work import work

from graphpipe.cli.run_in_parallel import run_in_parallel


def test_each_call_ends_in_its_own_way_and_ends_no_other() -> None:
    ended: list[str] = []
    names = ["a", "raise no luck", "die 7", "sleep 60", "b"]
    ends = run_in_parallel(names, work, timeout=0.5, at_once=2, on_end=lambda name, end: ended.append(name))
    assert [end.how for end in ends] == ["done", "raised", "died", "timeout", "done"]
    assert [end.what for end in ends[:1] + ends[2:]] == ["A", 7, None, "B"]
    assert isinstance(ends[1].what, ValueError)
    assert str(ends[1].what) == "no luck"
    assert sorted(ended) == sorted(names)
    assert multiprocessing.active_children() == []


def test_calls_run_at_the_same_time(tmp_path: Path) -> None:
    ends = run_in_parallel([f"meet {tmp_path}"] * 2, work, timeout=20, at_once=2)
    assert [end.how for end in ends] == ["done", "done"]


def test_one_call_at_a_time_if_asked_for(tmp_path: Path) -> None:
    ends = run_in_parallel([f"meet {tmp_path}"] * 2, work, timeout=0.3, at_once=1)
    # The second finds the file that the first left when it reached the limit.
    assert [end.how for end in ends] == ["timeout", "done"]
