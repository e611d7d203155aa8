"""The quick step time against the full simulation."""

import pytest
from builders import Part, chain, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import step_seconds
from graphpipe.simulator.critical_path import applies
from graphpipe.simulator.lines.repeating_period import Period
from graphpipe.simulator.simulate import simulate


@settings(max_examples=40, deadline=None)
@given(plans(batch_size=32, quick=True))
def test_the_quick_path_is_the_simulation(plan: Plan):
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(plans(batch_size=16, costs=[1.0], micro_batches=[1, 2], quick=True))
def test_the_quick_path_is_the_simulation_where_much_is_alike(plan: Plan):
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(plans(batch_size=16, quick=True), st.data())
def test_the_quick_path_is_the_simulation_where_stages_share(plan: Plan, data: st.DataObject):
    for name in ("one", "two"):
        stages = data.draw(st.sets(st.integers(0, len(plan.stages) - 1), min_size=min(2, len(plan.stages))))
        if len(stages) > 1:
            plan = share(plan, sorted(stages), 3.0, name)
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(plans(batch_size=16, quick=True, shared=True, schedules=["1f1b", "kfkb", "gpipe", "interleaved", "zb-auto"]))
def test_the_quick_path_is_the_simulation_where_stages_share_devices(plan: Plan):
    assert applies(plan)
    assert step_seconds(plan) == simulate(plan).step_seconds


def test_weights_are_gathered_once_all_devices_of_a_stage_are_free():
    # Devices 0 and 1 gather the weights of the first stage, then 1 and 2 those of the second: device 2 waits for 1.
    parts = [
        Part(devices=devices, micro_batch=2, degree=2, parameter_bytes=8.0, state="all") for devices in [(0, 1), (1, 2)]
    ]
    plan = make_plan(parts, batch_size=8)
    assert applies(plan)
    seconds = plan.gather_seconds(0)
    assert seconds > 0
    assert Period(plan, build_schedule(plan)).begins == [seconds, 2 * seconds, 2 * seconds]
    assert step_seconds(plan) == simulate(plan).step_seconds


def test_equal_branches_and_replicas_are_alike():
    branch = Part(micro_batch=2, degree=2)
    edges = [(0, 1, 1.0), (2, 3, 1.0), (1, 4, 1.0), (3, 4, 1.0)]
    plan = make_plan([branch] * 4 + [Part(micro_batch=2)], edges, batch_size=8)
    assert Period(plan, build_schedule(plan)).alike == [0, 0, 2, 2, 0, 0, 2, 2, 8]
    # A larger message at the end of one branch makes both of its stages differ from the other's.
    uneven = make_plan([branch] * 4 + [Part(micro_batch=2)], [*edges[:3], (3, 4, 2.0)], batch_size=8)
    assert Period(uneven, build_schedule(uneven)).alike == [0, 0, 2, 2, 4, 4, 6, 6, 8]


@settings(max_examples=20, deadline=None)
@given(plans())
def test_other_plans_are_simulated(plan: Plan):
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


def test_many_micro_batches_of_a_balanced_chain():
    assert step_seconds(make_plan([Part()] * 3, batch_size=1000)) == (1000 + 3 - 1) * 3


def test_a_deadlock_is_reported():
    plan = make_plan([Part(in_flight=1), Part(micro_batch=2)], chain(2), batch_size=8)
    with pytest.raises(InvalidInput, match="wait for each other forever"):
        step_seconds(plan)


def test_an_unknown_schedule_is_reported():
    with pytest.raises(InvalidInput, match="unknown schedule 'zigzag'"):
        step_seconds(make_plan([Part()], schedule="zigzag"))
