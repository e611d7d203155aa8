"""Which stage edges carry a value for others, on plans small enough to see."""

from dataclasses import replace

import pytest
from builders import Part, make_plan

from graphpipe.graph import EdgeValue
from graphpipe.plans import Plan
from graphpipe.plans.estimates import least_step_seconds, seconds_per_sample
from graphpipe.plans.verify import verify
from graphpipe.run.rehearse.emulated_replica import emulated_specs
from graphpipe.schedule import Schedule
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify_lowered import verify_lowered
from graphpipe.simulator.simulate import simulate


def readers(edges: list[tuple[int, int, float]], **changes: int) -> Plan:
    """Return stage 0 on device 0, and stages 1 and 2, which read its value, on device 1."""
    return make_plan([Part(devices=(0,)), Part(devices=(1,)), replace(Part(devices=(1,)), **changes)], edges)


def test_the_second_reader_of_a_device_takes_the_value_of_the_first_and_adds_its_gradient():
    plan = readers([(0, 1, 5.0), (0, 2, 5.0), (1, 2, 1.0)])
    assert plan.joint_edges.outputs == plan.joint_edges.gradients == {1: (0,)}
    assert plan.sent_bytes(1, (0,)) == 0.0
    sent = sum(span.bytes for span in simulate(plan).spans if span.kind == "send")
    assert sent == 8 * (5.0 + 5.0)  # the value there and the sum of its gradients back, for 8 samples
    verify_lowered(plan, build_schedule(plan), lower(plan, build_schedule(plan)))
    # A transfer of 5 s each way; compute of 1 s and 2 s; it counts at both ends of its edge only.
    assert seconds_per_sample(plan, 2) == pytest.approx(3.0)
    assert least_step_seconds(plan) <= simulate(plan).step_seconds


def test_the_second_reader_may_come_first_and_waits_for_the_value_of_the_other():
    plan = make_plan([Part(devices=(d,)) for d in (0, 1, 1)], [(0, 1, 5.0), (0, 2, 5.0)], batch_size=1)
    schedule = Schedule.parse("schedule hand\n0: F0.0 B0.0\n1: F2.0 F1.0 B1.0 B2.0\n")
    verify_lowered(plan, schedule, lower(plan, schedule))
    starts = {(span.kind, span.stage): span.start_seconds for span in simulate(plan, schedule).spans}
    # The value is there after 1 + 5 s. Both gradients take 5 s, one after the other, from 10 s and from 15 s on.
    assert [starts["F", stage] for stage in (0, 1, 2)] == [0, 7, 6]
    assert [starts["B", stage] for stage in (0, 1, 2)] == [20, 8, 10]


def test_gradients_of_stages_that_do_not_feed_each_other_go_back_separately():
    plan = make_plan([Part(devices=(d,)) for d in (0, 1, 1, 2)], [(0, 1, 5.0), (0, 2, 5.0), (1, 3, 1.0), (2, 3, 1.0)])
    assert plan.joint_edges.outputs == {1: (0,)}
    assert not plan.joint_edges.gradients
    sent = sum(span.bytes for span in simulate(plan).spans if span.kind == "send")
    assert sent == 8 * (5.0 + 2 * 5.0 + 2 * (1.0 + 1.0))


@pytest.mark.parametrize(("constant", "back"), [((), 8.0), (("b",), 5.0), (("a", "b"), 0.0)])
def test_only_values_with_a_gradient_are_sent_back(constant: tuple[str, ...], back: float):
    plan = make_plan([Part(), Part()], [(0, 1, 8.0)], overlap=False)
    values = (EdgeValue(name="a", bytes_per_sample=5.0), EdgeValue(name="b", bytes_per_sample=3.0))
    (first, second), (edge,) = plan.graph.ops, plan.graph.edges
    ops = (replace(first, without_gradient=constant), second)
    plan = replace(plan, graph=replace(plan.graph, ops=ops, edges=(replace(edge, values=values),)))
    verify(plan)
    assert sum(span.bytes for span in simulate(plan).spans if span.kind == "send") == 8 * (8.0 + back)
    # A message takes a second per byte, and the devices with it.
    assert seconds_per_sample(plan, 0) == pytest.approx(3.0 + 8.0 + back)
    assert sum(spec.requires_grad for spec in emulated_specs(plan)[0]) == bool(back)


@pytest.mark.parametrize(
    "plan",
    [
        make_plan([Part(), Part(), Part()], [(0, 1, 5.0), (0, 2, 5.0), (1, 2, 1.0)]),
        readers([(0, 1, 5.0), (0, 2, 5.0), (1, 2, 1.0)], micro_batch=2),
        readers([(0, 1, 5.0), (0, 2, 4.0), (1, 2, 1.0)]),
        readers([(0, 1, 5.0), (1, 2, 5.0)]),
    ],
    ids=["other devices", "other samples", "a part of the outputs", "a chain"],
)
def test_other_edges_are_not_joint(plan: Plan):
    assert not plan.joint_edges.outputs
    assert not plan.joint_edges.gradients
