"""The quick prediction against the full simulation."""

from dataclasses import replace

import pytest
from builders import Part, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.costs import declare_loads
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.lines.repeating_period import Period
from graphpipe.simulator.simulate import mean_step, simulate


@settings(max_examples=20, deadline=None)
@given(st.booleans().flatmap(lambda shared: plans(batch_size=32, quick=True, shared=shared)))
def test_a_prediction_is_what_the_simulation_finds(plan: Plan):
    """Of plans with devices of their own, and of plans whose stages share devices, which used to need a trace."""
    assert_equal(plan)


def test_equal_branches_that_offload_hold_their_own_bytes():
    """Devices with equal times are computed once: the copies of one stage were looked up among those of the other."""
    light, heavy = (Part(saved_bytes=3.0, offloads=True, parameter_bytes=count) for count in (5.0, 10.0))
    plan = make_plan([light, heavy, Part()], [(0, 2, 1.0), (1, 2, 1.0)])
    assert Period(plan, build_schedule(plan)).alike == [0, 0, 2]
    assert_equal(plan)
    assert predict(plan).peak_bytes[1] > predict(plan).peak_bytes[0]


@settings(max_examples=20, deadline=None)
@given(plans(quick=True, schedules=["zb-h1", "zb-auto"]))
def test_a_prediction_of_split_backwards_is_what_the_simulation_finds(plan: Plan):
    assert_equal(plan)


@settings(max_examples=20, deadline=None)
@given(plans())
def test_other_plans_are_simulated(plan: Plan):
    assert_equal(plan)


@settings(max_examples=10, deadline=None)
@given(st.booleans().flatmap(lambda shared: plans(quick=True, shared=shared)))
def test_a_prediction_with_loads_is_the_mean_step_and_the_figures_of_the_nearest_one(plan: Plan):
    loads = declare_loads(plan.graph, {"s0": {1: 0.5, 3: 0.5}})
    plan = replace(plan, costs=replace(plan.costs, loads=loads))
    prediction, (mean, trace) = predict(plan), mean_step(plan)
    assert prediction.step_seconds == mean
    assert prediction.bubble_fraction == pytest.approx(trace.bubble_fraction, abs=1e-9)
    assert prediction.peak_bytes == pytest.approx(trace.peak_bytes, rel=1e-12)


def assert_equal(plan: Plan):
    prediction, trace = predict(plan), simulate(plan)
    assert prediction.step_seconds == pytest.approx(trace.step_seconds, rel=1e-12)
    assert prediction.bubble_fraction == pytest.approx(trace.bubble_fraction, abs=1e-9)
    assert prediction.peak_bytes == pytest.approx(trace.peak_bytes, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(plan=plans())
def test_what_a_step_takes_besides_is_added_once(plan: Plan) -> None:
    """All three figures of a step have it, and tasks are where they were."""
    costs = replace(plan.costs, step_overhead_seconds=7.0)
    longer, before = replace(plan, costs=costs), simulate(plan)
    assert [span.start_seconds for span in simulate(longer).spans] == [span.start_seconds for span in before.spans]
    assert simulate(longer).step_seconds == pytest.approx(before.step_seconds + 7.0)
    assert step_seconds(longer) == pytest.approx(before.step_seconds + 7.0)
    assert predict(longer).step_seconds == pytest.approx(before.step_seconds + 7.0)
    assert predict(longer).bubble_fraction == pytest.approx(simulate(longer).bubble_fraction)
