"""Stages that do the same at the same times: who stands for whom, and that it changes no schedule."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from builders import Part, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan
from graphpipe.schedule import schedule
from graphpipe.schedule.list_scheduling.plan_work import works_of
from graphpipe.simulator import step_seconds
from graphpipe.simulator.simulate import simulate

TOWERS = [(0, 1, 1.0), (2, 3, 1.0), (1, 4, 1.0), (3, 4, 1.0)]
"""Two towers of two stages that join."""


def stands(*parts: Part) -> tuple[int, ...]:
    return works_of(make_plan(parts, TOWERS, batch_size=4)).stands


def test_equal_branches_are_there_once() -> None:
    assert stands(*[Part()] * 5) == (0, 1, 0, 1, 2)


def test_a_branch_with_other_work_stands_for_itself() -> None:
    for other in (
        Part(forward=1.5),
        Part(micro_batch=2, in_flight=8),
        Part(in_flight=4),
        Part(degree=2, micro_batch=2),
    ):
        assert stands(Part(), Part(), other, Part(), Part()) == (0, 1, 2, 3, 4)


def test_who_waits_for_others_is_another_even_with_equal_work() -> None:
    # The stages before the join are equal, but one of those that send to them is slow.
    assert stands(Part(), Part(), Part(forward=9), Part(), Part()) == (0, 1, 2, 3, 4)
    # Equal sources whose gradients come back at other times.
    assert stands(Part(in_flight=3), Part(), Part(in_flight=3), Part(backward=9), Part()) == (0, 1, 2, 3, 4)


def test_other_bytes_make_another_stage() -> None:
    edges = [(0, 1, 1.0), (2, 3, 2.0), (1, 4, 1.0), (3, 4, 1.0)]
    assert works_of(make_plan([Part()] * 5, edges, batch_size=4)).stands == (0, 1, 2, 3, 4)


def test_nobody_stands_for_a_stage_that_shares_its_device() -> None:
    parts = [Part(devices=(at,)) for at in (0, 1, 2, 3, 1)]
    assert works_of(make_plan(parts, TOWERS, batch_size=4)).stands == (0, 1, 2, 3, 4)


@st.composite
def towers(draw: st.DrawFn) -> Plan:
    """Two to four towers of stages of few kinds that join in a last stage."""
    kinds = st.sampled_from([Part(), Part(forward=1.5), Part(micro_batch=2, backward=1.3), Part(in_flight=8)])
    depth = draw(st.integers(1, 3))
    tower = [draw(kinds) for _ in range(depth)]
    parts, edges = list[Part](), list[tuple[int, int, float]]()
    for _ in range(draw(st.integers(2, 4))):
        first = len(parts)
        parts += draw(st.sampled_from([tower, [draw(kinds) for _ in range(depth)]]))
        edges += [(stage, stage + 1, draw(st.sampled_from([1.0, 1.0, 2.0]))) for stage in range(first, len(parts) - 1)]
    ends = range(depth - 1, len(parts), depth)
    return make_plan([*parts, Part()], [*edges, *((end, len(parts), 1.0) for end in ends)], batch_size=8)


@settings(max_examples=50, deadline=None)
@given(towers(), st.booleans())
def test_standing_in_changes_no_schedule(plan: Plan, roomy: bool) -> None:
    plan = replace(with_room(plan) if roomy else plan, schedule="zb-auto")
    with patch("graphpipe.schedule.list_scheduling.plan_work.alike", lambda own, hops: list(range(len(plan.stages)))):
        apart = schedule(plan)
    assert schedule(plan) == apart
    assert step_seconds(plan) == pytest.approx(simulate(plan, apart).step_seconds, rel=1e-12)
