"""The quick step time against the full simulation."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan, plans, share
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.graph import EdgeValue
from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator import step_seconds
from graphpipe.simulator.critical_path import applies, critical_path
from graphpipe.simulator.lines.line_times import line_times
from graphpipe.simulator.lines.repeating_period import Period
from graphpipe.simulator.simulate import simulate


@settings(max_examples=20, deadline=None)
@given(plans(batch_size=32, quick=True))
def test_the_quick_path_is_the_simulation(plan: Plan):
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(plans(batch_size=16, costs=[1.0], micro_batches=[1, 2], quick=True))
def test_the_quick_path_is_the_simulation_where_much_is_alike(plan: Plan):
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(plans(batch_size=16, quick=True), st.data())
def test_the_quick_path_is_the_simulation_where_stages_share(plan: Plan, data: st.DataObject):
    for name in ("one", "two"):
        stages = data.draw(st.sets(st.integers(0, len(plan.stages) - 1), min_size=min(2, len(plan.stages))))
        if len(stages) > 1:
            plan = share(plan, sorted(stages), 3.0, name)
    assert step_seconds(plan) == pytest.approx(simulate(plan).step_seconds, rel=1e-12)


@settings(max_examples=40, deadline=None)
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


READS = [(0, 1, {"v": 5.0}), (0, 2, {"w": 3.0}), (0, 3, {"v": 5.0, "w": 3.0}), (0, 4, {"v": 5.0})]
READS += [(0, 5, {"u": 2.0}), (0, 6, {"u": 2.0})]


@pytest.mark.parametrize(("first", "arrivals"), [(3, (15, 18)), (4, (7, 12)), (6, (20, 22))])
def test_what_other_messages_carry_arrives_with_the_last_of_them(first: int, arrivals: tuple[int, int]):
    """The order of a task's messages was tested only where each carried a value of its own."""
    # Stage 0 computes two samples in 2 s, and sends v of both samples (7 s, 12 s), w (15 s, 18 s) and u (20 s, 22 s).
    parts = [Part(devices=(0,), micro_batch=2), *[Part(devices=(1,), in_flight=2)] * 6]
    plan = make_plan(parts, [(source, target, sum(read.values())) for source, target, read in READS], batch_size=2)
    values = [tuple(EdgeValue(name=name, bytes_per_sample=count) for name, count in read.items()) for *_, read in READS]
    edges = tuple(replace(edge, values=some) for edge, some in zip(plan.graph.edges, values, strict=True))
    plan = replace(plan, graph=replace(plan.graph, edges=edges))
    assert set(plan.joint_edges.outputs) == {2, 3, 5}
    order = [first, *(stage for stage in (1, 2, 3, 4, 5, 6) if stage != first)]
    tasks = " ".join(f"{kind}{stage}.{batch}" for kind in "FB" for stage in order for batch in (0, 1))
    schedule = Schedule.parse(f"schedule hand\n0: F0.0 B0.0\n1: {tasks}\n")
    trace = simulate(plan, schedule)
    starts = [span.start_seconds for span in trace.spans if (span.kind, span.stage) == ("F", first)]
    assert tuple(starts) == (arrivals[0], max(arrivals[0] + 1, arrivals[1]))
    assert critical_path(plan, schedule) == trace.step_seconds


@pytest.mark.parametrize(("between", "order"), [([(1, 2, 1.0)], (1, 2)), ([], (2, 1))])
def test_a_channel_of_outputs_and_gradients_knows_what_outputs_carry(
    between: list[tuple[int, int, float]], order: tuple[int, int]
):
    # Of the four samples of a replica of stage 0, two go to the other device, and their gradients come back.
    first, other = Part(devices=(0, 1), micro_batch=8, degree=2), Part(micro_batch=2, degree=2, in_flight=8)
    parts = [first, *[replace(other, devices=(1, 0))] * 2]
    plan = make_plan(parts, [(0, 1, 5.0), (0, 2, 5.0), *between], batch_size=8)
    tasks = [
        f"{kind}{stage}.{batch}" for kind in "FB" for stage in order[:: 1 if kind == "F" else -1] for batch in range(4)
    ]
    schedule = Schedule.parse("schedule hand\n" + "".join(f"{d}: F0.0 {' '.join(tasks)} B0.0\n" for d in (0, 1)))
    assert plan.joint_edges.outputs == {1: (0,)}
    computed = [span for span in simulate(plan, schedule).spans if span.kind in "FB"]
    ends = [sorted(span.end_seconds for span in computed if span.device == device) for device in (0, 1)]
    found = line_times(Period(plan, schedule))
    assert found is not None
    assert found.ends == ends


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
