"""Equal stages, which do the same tasks at the same times, are scheduled once. The schedules do not change."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from builders import Part, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.planners.raise_in_flight import with_room
from graphpipe.plans import Plan
from graphpipe.schedule.list_scheduling.plan_work import work_of_plan
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import step_seconds
from graphpipe.simulator.simulate import simulate

TOWERS = [(0, 1, 1.0), (2, 3, 1.0), (1, 4, 1.0), (3, 4, 1.0)]
"""Two towers of two stages that join."""


def listed(*parts: Part) -> tuple[int, ...]:
    return work_of_plan(make_plan(parts, TOWERS, batch_size=4)).work_of


def test_equal_branches_are_scheduled_once() -> None:
    assert listed(*[Part()] * 5) == (0, 1, 0, 1, 2)


def test_a_branch_with_different_work_is_scheduled_separately() -> None:
    for other in (
        Part(forward=1.5),
        Part(micro_batch=2, in_flight=8),
        Part(in_flight=4),
        Part(degree=2, micro_batch=2),
    ):
        assert listed(Part(), Part(), other, Part(), Part()) == (0, 1, 2, 3, 4)


def test_stages_that_wait_for_different_stages_are_not_equal() -> None:
    # The stages before the join are equal, but one of their senders is slow.
    assert listed(Part(), Part(), Part(forward=9), Part(), Part()) == (0, 1, 2, 3, 4)
    # The sources are equal, but their gradients arrive at different times.
    assert listed(Part(in_flight=3), Part(), Part(in_flight=3), Part(backward=9), Part()) == (0, 1, 2, 3, 4)


def test_stages_that_send_different_bytes_are_not_equal() -> None:
    edges = [(0, 1, 1.0), (2, 3, 2.0), (1, 4, 1.0), (3, 4, 1.0)]
    assert work_of_plan(make_plan([Part()] * 5, edges, batch_size=4)).work_of == (0, 1, 2, 3, 4)


def test_a_stage_that_shares_its_device_is_scheduled_separately() -> None:
    parts = [Part(devices=(at,)) for at in (0, 1, 2, 3, 1)]
    assert work_of_plan(make_plan(parts, TOWERS, batch_size=4)).work_of == (0, 1, 2, 3, 4)


@st.composite
def towers(draw: st.DrawFn) -> Plan:
    """Draw two to four towers that join in a last stage, with few kinds of stages."""
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


@settings(max_examples=25, deadline=None)
@given(towers(), st.booleans())
def test_scheduling_equal_stages_once_does_not_change_any_schedule(plan: Plan, roomy: bool) -> None:
    plan = replace(with_room(plan) if roomy else plan, schedule="zb-auto")
    with patch(
        "graphpipe.schedule.list_scheduling.plan_work.find_equal_stages",
        lambda own, hops: list(range(len(plan.stages))),
    ):
        apart = build_schedule(plan)
    assert build_schedule(plan) == apart
    assert step_seconds(plan) == pytest.approx(simulate(plan, apart).step_seconds, rel=1e-12)
