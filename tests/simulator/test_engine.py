"""The engine with costs 1, 10, 100, 1000, so that the digits of each time show the path that led to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.simulator.events.engine import Activity, Interval, run, run_shared


def test_a_chain_adds_up():
    chain = [Activity(1, ()), Activity(10, (0,)), Activity(100, (1,))]
    assert run(chain) == [(0, 1), (1, 11), (11, 111)]


def test_a_join_waits_for_the_slower_branch():
    diamond = [Activity(1, ()), Activity(10, (0,)), Activity(100, (0,)), Activity(1000, (1, 2))]
    assert run(diamond) == [(0, 1), (1, 11), (1, 101), (101, 1101)]


def test_independent_activities_run_at_once():
    assert run([Activity(1000, ()), Activity(1, ())]) == [(0, 1000), (0, 1)]


def test_nothing_happens_without_activities():
    assert run([]) == []
    assert run_shared([], {}) == []


def test_two_on_one_core_take_turns():
    # Both at half speed until the short one ends at 20; the long one has 90 left.
    found = run_shared([Activity(10, (), "node"), Activity(100, (), "node")], {"node": 1})
    assert found == [(0, 20), (0, 110)]


def test_three_on_two_cores_run_at_two_thirds():
    found = run_shared([Activity(10, (), "node")] * 3, {"node": 2})
    assert found == [(0, pytest.approx(15))] * 3


def test_a_later_activity_slows_the_running_one():
    # Only the first runs until 10. Then both run at half speed. The first has 90 left. The second takes 10, to 30.
    late = [Activity(10, ()), Activity(100, (), "node"), Activity(10, (0,), "node")]
    assert run_shared(late, {"node": 1}) == [(0, 10), (0, 110), (10, 30)]


def test_other_pools_and_no_pool_are_not_slowed():
    mixed = [Activity(100, (), "a"), Activity(100, (), "a"), Activity(100, (), "b"), Activity(100, ())]
    assert run_shared(mixed, {"a": 1, "b": 1}) == [(0, 200), (0, 200), (0, 100), (0, 100)]


@st.composite
def activities(draw: st.DrawFn) -> list[Activity]:
    count = draw(st.integers(1, 20))
    return [
        Activity(
            draw(st.sampled_from([0, 1, 10, 100, 1000])),
            tuple(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else (),
            draw(st.sampled_from([None, "a", "b"])),
        )
        for number in range(count)
    ]


@given(activities())
def test_sharing_changes_nothing_if_each_activity_has_a_core(found: list[Activity]):
    for shared, alone in zip(run_shared(found, {"a": 20, "b": 20}), run(found), strict=True):
        assert shared == pytest.approx(alone)


@given(activities())
def test_one_core_does_all_its_work_and_no_more(found: list[Activity]):
    happened = run_shared(found, {"a": 1, "b": 1})
    for pool in ("a", "b"):
        mine = [(it, when) for it, when in zip(found, happened, strict=True) if it.pool == pool and it.seconds]
        assert covered([when for _, when in mine]) == pytest.approx(sum(it.seconds for it, _ in mine))
    for it, when in zip(found, happened, strict=True):
        assert when.start == max((happened[need].end for need in it.needs), default=0.0)
        assert when.end - when.start >= it.seconds - 1e-9


def covered(intervals: list[Interval]) -> float:
    total, until = 0.0, 0.0
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
