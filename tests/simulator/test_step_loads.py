"""Steps whose samples have loads, against times computed by hand."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import Part, make_plan, plans
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.costs import declare_loads
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall, needed_bytes
from graphpipe.plans.sharding import sample_range
from graphpipe.plans.verify import verify
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import mean_step, simulate
from graphpipe.simulator.step_loads import DRAWN_STEPS, draw_loads
from graphpipe.trace import Trace

FOURTHS = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}


def with_loads(plan: Plan, **loads: Mapping[float, float] | Mapping[int, float]) -> Plan:
    return replace(plan, costs=replace(plan.costs, loads=declare_loads(plan.graph, loads)))


def tasks(trace: Trace, device: int) -> list[tuple[str, float, float]]:
    return [
        (f"{span.kind}{span.micro_batch}", span.start_seconds, span.end_seconds)
        for span in trace.spans
        if span.device == device and span.kind in "FB"
    ]


def test_a_micro_batch_takes_as_long_as_its_samples_load():
    """Two stages under 1F1B. A sample of load n takes n and 2n seconds in the first, 1 and 2 in the second.

    stage 0   F0 F1......... B0...  F2.... B1............... F3 B2....... B3...
              0  1           5    7      9                 17 18        22    24
    stage 1      F0 B0...    F1 B1...  F2 B2...              F3 B3
                 1  2    4   5  6   8  9  10  12             18 19   21
    """
    plan = with_loads(make_plan([Part(), Part()], batch_size=4), s0=FOURTHS)
    trace = simulate(plan, loads={"s0": [1, 4, 2, 1]})
    assert tasks(trace, 0) == [
        ("F0", 0, 1),
        ("F1", 1, 5),
        ("B0", 5, 7),
        ("F2", 7, 9),
        ("B1", 9, 17),
        ("F3", 17, 18),
        ("B2", 18, 22),
        ("B3", 22, 24),
    ]
    assert tasks(trace, 1) == [
        ("F0", 1, 2),
        ("B0", 2, 4),
        ("F1", 5, 6),
        ("B1", 6, 8),
        ("F2", 9, 10),
        ("B2", 10, 12),
        ("F3", 18, 19),
        ("B3", 19, 21),
    ]
    assert trace.step_seconds == 24


def test_a_stage_waits_for_the_slowest_replica():
    """Two replicas get one sample each of every micro-batch. With the mean load of 2.25 a step would take 18.75."""
    plan = with_loads(make_plan([Part(micro_batch=2, degree=2), Part(micro_batch=2)], batch_size=4), s0=FOURTHS)
    trace = simulate(plan, loads={"s0": [1, 4, 3, 1]})
    assert tasks(trace, 0) == [("F0", 0, 1), ("F1", 1, 4), ("B0", 10, 12), ("B1", 16, 22)]
    assert tasks(trace, 1) == [("F0", 0, 4), ("F1", 4, 5), ("B0", 10, 18), ("B1", 18, 20)]
    assert tasks(trace, 2) == [("F0", 4, 6), ("B0", 6, 10), ("F1", 10, 12), ("B1", 12, 16)]
    assert trace.step_seconds == 22
    mean = with_loads(plan, s0={2.25: 1.0})
    assert simulate(mean).step_seconds == step_seconds(mean) == predict(mean).step_seconds == 18.75


@pytest.mark.parametrize(("schedule", "loaded"), [("1f1b", "s0"), ("zb-h1", "s1")])
def test_a_prediction_is_the_mean_of_drawn_steps(schedule: str, loaded: str):
    plan = make_plan([Part(micro_batch=2, degree=2)] * 2, schedule=schedule)
    plan = with_loads(plan, **{loaded: FOURTHS})
    drawn = [draw_loads(plan, step)[loaded] for step in range(DRAWN_STEPS)]
    assert len(set(drawn)) > DRAWN_STEPS / 2
    assert {load for loads in drawn for load in loads} == set(FOURTHS)
    steps = [simulate(plan, loads={loaded: loads}).step_seconds for loads in drawn]
    mean, trace = mean_step(plan)
    assert predict(plan).step_seconds == mean == pytest.approx(sum(steps) / DRAWN_STEPS)
    assert trace == simulate(plan)
    assert abs(trace.step_seconds - mean) == pytest.approx(min(abs(step - mean) for step in steps))
    assert mean > step_seconds(plan)  # which knows nothing of waiting for the slowest


@settings(max_examples=10, deadline=None)
@given(plans(), st.sampled_from([1.0, 2.5, 4.0]))
def test_samples_of_one_load_are_samples_of_that_cost(plan: Plan, load: float):
    """Costs of n times the slope, with n times the saved bytes, are the same plan."""
    loaded = with_loads(plan, **{"s*": {load: 1.0}})
    ops = tuple(
        replace(op, work=replace(op.work, saved_bytes_per_sample=load * op.work.saved_bytes_per_sample))
        for op in plan.graph.ops
    )
    graph = replace(plan.graph, ops=ops)
    rows = tuple(
        replace(
            row,
            **{
                name: replace(curve, lines=tuple((fixed, load * slope) for fixed, slope in curve.lines))
                for name, curve in (
                    ("forward", row.forward),
                    ("input_gradient", row.input_gradient),
                    ("weight_gradient", row.weight_gradient),
                )
            },
        )
        for row in plan.costs.rows
    )
    costs = replace(plan.costs, graph_fingerprint=graph.fingerprint, rows=rows)
    scaled = replace(plan, graph=graph, costs=costs)
    found, expected = simulate(loaded), simulate(scaled)
    assert found.step_seconds == pytest.approx(expected.step_seconds)
    assert step_seconds(loaded) == pytest.approx(expected.step_seconds)
    assert found.peak_bytes == pytest.approx(expected.peak_bytes)
    assert needed_bytes(loaded) == pytest.approx(needed_bytes(scaled))


def test_every_replica_and_stage_takes_its_own_samples():
    """A stage of another micro-batch size, and one without a load, in a step in which every load differs."""
    parts = [Part(micro_batch=4, degree=2, backward=1.0), Part(micro_batch=2), Part(micro_batch=4, backward=3.0)]
    plan = with_loads(make_plan(parts, schedule="kfkb"), s0={float(n): 0.125 for n in range(8)})
    loads = [3.0, 1.0, 4.0, 1.0, 5.0, 0.0, 2.0, 6.0]
    for span in simulate(plan, loads={"s0": loads}).spans:
        stage = plan.stages[span.stage]
        if span.kind in "FB" and span.stage == 0:
            rows = sample_range(8, 4, 2, span.micro_batch, stage.devices.index(span.device))
            assert span.end_seconds - span.start_seconds == pytest.approx(sum(loads[rows.start : rows.stop]))
        elif span.kind == "F":
            assert span.end_seconds - span.start_seconds == pytest.approx(stage.micro_batch)


def test_memory_is_planned_for_the_largest_load_by_planner_and_verifier():
    """A stage of 1e9 bytes that keeps 4 samples of 1e8 bytes each of load 1: too little for four of load 3."""
    plan = make_plan([Part(saved_bytes=1e8, in_flight=4), Part()], batch_size=8)
    verify(with_loads(plan, s0={1: 0.9, 2.5: 0.1}))
    assert memory_shortfall(with_loads(plan, s0={1: 0.9, 2.5: 0.1})) == 0.0
    with pytest.raises(Infeasible, match=r"\(200000000 bytes\) short"):
        verify(with_loads(plan, s0={1: 0.999, 3: 0.001}))
    assert memory_shortfall(with_loads(plan, s0={1: 0.999, 3: 0.001})) == pytest.approx(2e8)
    assert max(predict(with_loads(plan, s0={1: 0.999, 2: 0.001})).peak_bytes) == 8e8


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ({}, r"loads: has 0 numbers for 's0', but the mini-batch has 8 samples"),
        ({"s0": [1.0] * 7}, r"loads: has 7 numbers for 's0', but the mini-batch has 8 samples"),
        ({"s0": [5.0] * 8}, r"loads: 's0' is 5.0 for a sample, but was declared as 0 to 4"),
        ({"s0": [1.0] * 8, "s1": []}, r"loads: the plan does not declare 's1'. .*Known: s0"),
    ],
)
def test_loads_that_the_plan_does_not_declare_are_refused(loads: dict[str, list[float]], message: str):
    with pytest.raises(InvalidInput, match=message):
        simulate(with_loads(make_plan([Part(), Part()]), s0=FOURTHS), loads=loads)


def test_a_balanced_mini_batch_is_predicted_in_the_order_that_runs() -> None:
    """Micro-batches of 2: loads 4 4 1 1 become 4 1 4 1, and both stages take 5 instead of 8 and 2."""
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)], batch_size=4)
    plan = with_loads(plan, s0=FOURTHS)
    (load,) = plan.costs.loads
    balanced = replace(plan, costs=replace(plan.costs, loads=(replace(load, balanced=True),)))
    given = simulate(balanced, loads={"s0": [4, 4, 1, 1]})
    assert given.step_seconds == simulate(plan, loads={"s0": [4, 1, 4, 1]}).step_seconds
    assert tasks(given, 0)[0] == ("F0", 0.0, 5.0)
    assert predict(balanced).step_seconds < predict(plan).step_seconds
    assert plan.costs.fingerprint != balanced.costs.fingerprint
