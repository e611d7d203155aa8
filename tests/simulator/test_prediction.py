"""The quick prediction against the full simulation."""

import pytest
from builders import plans
from hypothesis import given, settings

from graphpipe.plans import Plan
from graphpipe.simulator import predict
from graphpipe.simulator.simulate import simulate


@settings(max_examples=40, deadline=None)
@given(plans(batch_size=32, quick=True))
def test_a_prediction_is_what_the_simulation_finds(plan: Plan):
    assert_equal(plan)


@settings(max_examples=20, deadline=None)
@given(plans())
def test_other_plans_are_simulated(plan: Plan):
    assert_equal(plan)


def assert_equal(plan: Plan):
    prediction, trace = predict(plan), simulate(plan)
    assert prediction.step_seconds == pytest.approx(trace.step_seconds, rel=1e-12)
    assert prediction.bubble_fraction == pytest.approx(trace.bubble_fraction, abs=1e-9)
    assert prediction.peak_bytes == pytest.approx(trace.peak_bytes, rel=1e-12)
