"""Bars show the bytes of each stage by kind, and thinned curves keep their peaks."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builders import Part, make_plan, temporaries
from subjects import PLAN, whole_subject

from graphpipe.costs import State
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.report.figures.memory_figure import (
    MOST_POINTS,
    PARTS,
    memory_figure,
    most_samples,
    stage_bytes,
    stage_bytes_figure,
    thin,
)
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import MemorySample


def bar_names(plan: Plan) -> list[str]:
    """Return the names of the bars of the stages' bytes, in order."""
    bars: list[Any] = [*stage_bytes_figure(plan).figure.data]
    return [bar.name for bar in bars if bar.type == "bar"]


def test_parts_add_up_to_the_cost_models_bytes() -> None:
    for number, stage in enumerate(PLAN.stages):
        parts = stage_bytes(PLAN, number)
        model = PLAN.cost_model
        kept = model.activation_bytes.saved(stage.ops) + model.activation_bytes.received(stage.ops)
        expected = model.parameter_bytes.state(stage.ops) + kept * stage.in_flight / stage.degree
        assert sum(getattr(parts, part) for part in PARTS) == pytest.approx(expected)


def test_parts_equal_values_computed_by_hand() -> None:
    # AdamW in fp32 takes four times the parameters' bytes. s0 keeps 3 bytes for each of its 4 samples in flight.
    parts = stage_bytes(PLAN, 0)
    assert PLAN.stages[0].in_flight == 4
    assert (parts.weights, parts.gradients, parts.optimizer) == (64.0, 64.0, 128.0)
    assert (parts.activations, parts.buffers) == (12.0, 0.0)
    # s2 receives 4 bytes per sample from s0. Each of its two replicas holds one of the 2 samples in flight.
    assert stage_bytes(PLAN, 2).buffers == 4.0


def test_the_memory_of_a_process_does_not_flatten_the_curves() -> None:
    """Curves of 46 MiB lay on the axis below the 1.3 GiB of a process on a CPU."""
    subject = whole_subject()
    assert subject.measured
    assert subject.predicted
    process = tuple(replace(sample, bytes=sample.bytes + 1e9) for sample in subject.predicted.memory)
    figure: Any = memory_figure(replace(subject, measured=replace(subject.measured, memory=process))).figure
    drawn = [value for curve in figure.data if curve.mode == "lines" and curve.line.dash is None for value in curve.y]
    assert figure.layout.yaxis.range[1] <= 2.7 * max(drawn)


def test_bars_show_the_simulated_peak_though_the_plan_allows_more() -> None:
    # A report once showed 9.1 GiB for stages that may hold 512 samples, where the simulated step holds far fewer.
    plan = replace(PLAN, stages=tuple(replace(stage, in_flight=16) for stage in PLAN.stages))
    predicted = simulate(plan)
    for number, stage in enumerate(plan.stages):
        bar = stage_bytes(plan, number, predicted)
        peak = predicted.peak_bytes[stage.devices[0]]
        assert sum(getattr(bar, part) for part in PARTS) == pytest.approx(peak)
    assert most_samples(plan, 0, predicted) == 8.0 < plan.stages[0].in_flight


def test_the_held_part_of_a_split_backward_counts_until_its_second_half() -> None:
    plan = replace(PLAN, schedule="zb-h1")
    predicted = simulate(plan)
    bar = stage_bytes(plan, 0, predicted)
    assert sum(getattr(bar, part) for part in PARTS) == pytest.approx(predicted.peak_bytes[0])


def test_a_capacity_far_above_the_bars_is_in_sight_only_when_asked_for() -> None:
    def drawn(limit: float) -> tuple[float, float, float, float]:
        (kind,) = PLAN.cluster.device_types
        cluster = replace(PLAN.cluster, device_types=(replace(kind, memory_bytes=limit),))
        plan = replace(PLAN, cluster=cluster)
        found = stage_bytes_figure(plan)
        traces: list[Any] = [*found.figure.data]
        capacity = next(trace for trace in traces if trace.name == "capacity").x[0]
        longest = max(sum(getattr(stage_bytes(plan, at), part) for part in PARTS) for at in range(len(plan.stages)))
        ranges = found.extra["ranges"]
        assert ranges["Bars"][1] > longest / 2**20
        return found.figure.layout.xaxis.range[1], capacity, ranges["Bars"][1], ranges["Bars and capacities"][1]

    shown, capacity, _, whole = drawn(400.0)
    assert shown == whole > capacity
    shown, capacity, bars, whole = drawn(1e9)
    assert shown == bars < capacity < whole


def test_recomputed_tensors_are_a_separate_part() -> None:
    plan = replace(PLAN, stages=(replace(PLAN.stages[0], recompute="full"), *PLAN.stages[1:]))
    parts = stage_bytes(plan, 0)
    # 3 bytes for each of the two samples of a micro-batch. The stage receives nothing.
    assert (parts.activations, parts.buffers, parts.recomputed) == (0.0, 0.0, 6.0)
    assert bar_names(plan) == list(PARTS[:-1])
    assert bar_names(PLAN) == list(PARTS[:-2])


def test_sharded_state_is_smaller() -> None:
    def parts(state: State) -> tuple[float, float, float]:
        two = make_plan([Part(parameter_bytes=64, micro_batch=2, degree=2, state=state)], batch_size=4)
        bar = stage_bytes(two, 0)
        return bar.weights, bar.gradients, bar.optimizer

    assert parts("whole") == (64.0, 64.0, 128.0)
    assert parts("optimizer") == (64.0, 64.0, 128.0)  # one operator, which one of the replicas updates
    assert parts("all") == (64.0 + 32.0, 64.0, 64.0)
    assert parts("layers") == (32.0 + 4 * 64.0, 32.0, 64.0)  # one operator, which is the largest layer


def test_temporaries_are_a_part_if_they_were_profiled() -> None:
    rows = tuple(replace(row, temporaries=temporaries(1.0, 7.0, fixed=5.0)) for row in PLAN.costs.rows)
    plan = replace(PLAN, costs=replace(PLAN.costs, rows=rows))
    # Temporaries of 2 samples, and the gradient of the tensors that s0 sends.
    returned = max(edge.bytes_per_sample for edge in PLAN.edges if edge.source == 0)
    assert stage_bytes(plan, 0).temporaries == 5.0 + 2 * 7.0 + 2 * returned
    assert bar_names(plan) == [*PARTS[:-2], "temporaries"]
    assert sum(getattr(stage_bytes(plan, 0), part) for part in PARTS) == pytest.approx(needed_bytes(plan)[0])


def test_a_curve_of_any_length_keeps_its_peaks() -> None:
    samples = [MemorySample(device=0, seconds=float(at), bytes=float(at % 97)) for at in range(50_000)]
    samples[31_007] = MemorySample(device=0, seconds=31_007.0, bytes=1e6)
    thinned = thin(samples)
    assert len(thinned) <= MOST_POINTS
    assert all(before.seconds < after.seconds for before, after in pairwise(thinned))
    assert samples[31_007] in thinned
    assert min(sample.bytes for sample in thinned) == 0.0
    assert thin(samples[:MOST_POINTS]) == samples[:MOST_POINTS]


def test_a_limit_far_above_the_curves_is_outside_the_visible_range() -> None:
    figure = memory_figure(whole_subject()).figure
    traces: list[Any] = [*figure.data]
    limit = next(trace for trace in traces if trace.name.startswith("limit"))
    assert figure.layout.yaxis.title.text == "MiB"  # the curves reach only a few bytes
    assert limit.y[0] == pytest.approx(1e9 / 2**20)
    assert figure.layout.yaxis.range[1] < limit.y[0] / 100
    assert {trace.name for trace in traces} >= {"d0", "d1", "d2", "d3", "measured peaks"}


def test_a_stage_without_parameters_is_shown_without_state() -> None:
    parts = stage_bytes(make_plan([Part()]), 0)
    assert (parts.weights, parts.gradients, parts.optimizer) == (0.0, 0.0, 0.0)
