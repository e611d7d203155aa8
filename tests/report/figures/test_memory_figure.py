"""Where bytes are, and curves that stay true when they are thinned."""

from dataclasses import replace
from itertools import pairwise

import pytest
from builders import Part, make_plan, temporaries
from subjects import PLAN, whole_subject

from graphpipe.plans.estimates import needed_bytes
from graphpipe.report.figures.memory_figure import (
    MOST_POINTS,
    PARTS,
    memory_figure,
    stage_bytes,
    stage_bytes_figure,
    thin,
)
from graphpipe.trace import MemorySample


def test_parts_add_up_to_what_the_cost_model_says() -> None:
    for number, stage in enumerate(PLAN.stages):
        parts = stage_bytes(PLAN, number)
        model = PLAN.cost_model
        held = model.activation_bytes(stage.ops) * stage.in_flight / stage.degree
        assert sum(getattr(parts, part) for part in PARTS) == pytest.approx(model.state_bytes(stage.ops) + held)


def test_parts_by_hand() -> None:
    # AdamW in fp32 holds four times the parameters; s0 keeps 3 bytes for each of its 4 samples in flight.
    parts = stage_bytes(PLAN, 0)
    assert PLAN.stages[0].in_flight == 4
    assert (parts.weights, parts.gradients, parts.optimizer) == (64.0, 64.0, 128.0)
    assert (parts.activations, parts.buffers) == (12.0, 0.0)
    # s2 receives 4 bytes per sample of s0; each of its two replicas holds half of the 2 samples in flight.
    assert stage_bytes(PLAN, 2).buffers == 4.0


def test_what_is_computed_again_is_a_part_of_its_own() -> None:
    plan = replace(PLAN, stages=(replace(PLAN.stages[0], recompute="full"), *PLAN.stages[1:]))
    parts = stage_bytes(plan, 0)
    # 3 bytes for each of the two samples of a micro-batch; nothing is received.
    assert (parts.activations, parts.buffers, parts.recomputed) == (0.0, 0.0, 6.0)
    names = lambda plan: [bar.name for bar in stage_bytes_figure(plan).figure.data]  # noqa: E731
    assert names(plan) == list(PARTS[:-1])
    assert names(PLAN) == list(PARTS[:-2])


def test_what_is_held_while_tasks_run_is_a_part_where_it_is_known() -> None:
    rows = tuple(replace(row, temporaries=temporaries(1.0, 7.0, fixed=5.0)) for row in PLAN.costs.rows)
    plan = replace(PLAN, costs=replace(PLAN.costs, rows=rows))
    # Of 2 samples, and the gradient that comes back for what s0 sends.
    returned = max(edge.bytes_per_sample for edge in PLAN.edges if edge.source == 0)
    assert stage_bytes(plan, 0).temporaries == 5.0 + 2 * 7.0 + 2 * returned
    assert [bar.name for bar in stage_bytes_figure(plan).figure.data] == [*PARTS[:-2], "temporaries"]
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


def test_a_limit_far_above_is_there_but_out_of_sight() -> None:
    figure = memory_figure(whole_subject()).figure
    limit = next(trace for trace in figure.data if trace.name.startswith("limit"))
    assert figure.layout.yaxis.title.text == "MiB"  # the curves are of a few bytes
    assert limit.y[0] == pytest.approx(1e9 / 2**20)
    assert figure.layout.yaxis.range[1] < limit.y[0] / 100
    assert {trace.name for trace in figure.data} >= {"d0", "d1", "d2", "d3", "measured peaks"}


def test_a_stage_without_parameters_holds_no_state() -> None:
    parts = stage_bytes(make_plan([Part()]), 0)
    assert (parts.weights, parts.gradients, parts.optimizer) == (0.0, 0.0, 0.0)
