"""Properties of every predicted trace."""

from itertools import pairwise

import pytest
from builders import plans
from hypothesis import given, settings

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes, stage_memory
from graphpipe.plans.sharding import sample_range
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Span, Trace


def one_at_a_time(spans: list[Span]) -> bool:
    return all(one.end_seconds <= other.start_seconds for one, other in pairwise(spans))


@settings(max_examples=20, deadline=None)
@given(plans())
def test_devices_and_channels_do_one_thing_at_a_time(plan: Plan):
    trace = simulate(plan)
    busy = ("F", "B", "optimizer") if plan.cluster.overlap else ("F", "B", "optimizer", "send", "receive", "reduce")
    for device in plan.used_devices:
        mine = [span for span in trace.spans if span.device == device]
        assert one_at_a_time([span for span in mine if span.kind in busy])
        assert one_at_a_time([span for span in mine if span.kind == "reduce"])
        for peer in plan.used_devices:
            assert one_at_a_time([span for span in mine if span.kind == "send" and span.peer == peer])
    assert trace.step_seconds == max(span.end_seconds for span in trace.spans)


@settings(max_examples=20, deadline=None)
@given(plans(batch_size=8))
def test_no_task_starts_before_its_samples_are_there(plan: Plan):
    trace = simulate(plan)
    for position, edge in enumerate(plan.edges):
        outputs, inputs = task_spans(plan, trace, edge.source), task_spans(plan, trace, edge.target)
        for sample in range(plan.batch_size):
            assert outputs["F", sample].end_seconds <= inputs["F", sample].start_seconds
            if position in plan.gradient_edges:
                assert inputs["B", sample].end_seconds <= outputs["B", sample].start_seconds


def task_spans(plan: Plan, trace: Trace, number: int) -> dict[tuple[str, int], Span]:
    stage = plan.stages[number]
    found: dict[tuple[str, int], Span] = {}
    for span in trace.spans:
        if span.stage == number and span.kind in ("F", "B"):
            replica = stage.devices.index(span.device)
            here = sample_range(plan.batch_size, stage.micro_batch, stage.degree, span.micro_batch, replica)
            found |= {(span.kind, sample): span for sample in range(here.start, here.stop)}
    return found


@settings(max_examples=20, deadline=None)
@given(plans())
def test_memory_stays_within_what_is_in_flight_and_returns_to_the_weights(plan: Plan):
    trace, needed = simulate(plan), needed_bytes(plan)
    for device in plan.used_devices:
        hosted = [stage for stage in plan.stages if device in stage.devices]
        state = sum(stage_memory(plan.cost_model, stage).state for stage in hosted)
        held = [sample.bytes for sample in trace.memory if sample.device == device]
        assert held[-1] == pytest.approx(state)
        assert max(held) <= needed[device] + 1e-6
