"""What message buffers hold, and until when, by hand."""

from dataclasses import replace

from builders import Part, chain, make_plan

from graphpipe.graph import EdgeValue
from graphpipe.plans import Plan
from graphpipe.schedule import StageTask
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.simulator.message_buffers import Buffers, Moment


def changes(plan: Plan, device: int) -> list[tuple[Moment, float]]:
    """Return what a device's buffers take and give back."""
    return [(when, count) for when, count in Buffers.of(plan, lower(plan, build_schedule(plan)), device) if count]


def end(kind: str, stage: int) -> Moment:
    return Moment(StageTask(kind, stage, 0), "end")  # pyright: ignore[reportArgumentType]


def test_a_received_value_stays_for_the_weight_gradient_and_a_received_gradient_does_not():
    plan = make_plan([Part()] * 3, [(0, 1, 8.0), (1, 2, 4.0)], batch_size=1, schedule="zb-h1")
    plan = replace(plan, costs=replace(plan.costs, kept_for_weight_gradient=0.25))
    assert changes(plan, 1) == [
        (Moment(None, "start"), 8.0),  # the output of stage 0 may arrive from the beginning
        (end("I", 1), -6.0),
        (end("W", 1), -2.0),
        (Moment(None, "start"), 4.0),  # and so may the gradient from stage 2
        (end("I", 1), -4.0),
        (end("I", 1), 8.0),  # the gradient to stage 0, until the step ends
        (Moment(None, "end"), -8.0),
    ]


def test_a_gradient_that_waits_for_another_one_has_the_bytes_of_values_with_a_gradient():
    # Both stages of device 1 read 8 bytes of stage 0, of which 3 have no gradient. Their gradients go back as one sum.
    readers = [Part(devices=(1,)), Part(devices=(1,))]
    plan = make_plan([Part(devices=(0,)), *readers], [*chain(2, 8.0), (0, 2, 8.0), (1, 2, 0.0)], batch_size=1)
    values = (EdgeValue(name="a", bytes_per_sample=5.0), EdgeValue(name="b", bytes_per_sample=3.0))
    first, *others = plan.graph.ops
    edges = tuple(replace(edge, values=values) if edge.bytes_per_sample else edge for edge in plan.graph.edges)
    graph = replace(plan.graph, ops=(replace(first, without_gradient=("b",)), *others), edges=edges)
    plan = replace(plan, graph=graph)
    assert plan.joint_edges.gradients == {1: (0,)}
    gradients = [(when, count) for when, count in changes(plan, 1) if count not in (8.0, -8.0)]
    assert gradients == [(end("B", 2), 5.0), (Moment(None, "end"), -5.0)]
    assert changes(plan, 0) == [(end("F", 0), 5.0), (end("B", 0), -5.0)]


def test_gradients_that_wait_for_the_first_reader_are_all_there_until_it_sends_their_sum():
    readers = [Part(devices=(1,))] * 3
    edges = [*((0, reader, 5.0) for reader in (1, 2, 3)), (1, 2, 1.0), (2, 3, 1.0)]
    plan = make_plan([Part(devices=(0,)), *readers], edges, batch_size=1)
    assert plan.joint_edges.gradients == {1: (0,), 2: (0, 1)}
    gradients = [(when, count) for when, count in changes(plan, 1) if when.side == "end" and abs(count) == 5.0]
    received = [(end("B", stage), -5.0) for stage in (1, 2, 3)]
    assert gradients[:3] == received
    # Of stages 3 and 2, then the sum in their place, until the step ends.
    assert gradients[3:] == [(end("B", 3), 5.0), (end("B", 2), 5.0), (end("B", 1), -5.0), (Moment(None, "end"), -5.0)]
