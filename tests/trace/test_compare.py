"""Comparison of predicted with measured traces."""

from dataclasses import replace

import pytest
from builders import Part, chain, make_plan

from graphpipe.errors import InvalidInput
from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace
from graphpipe.trace.compare import compare

PREDICTED = simulate(make_plan([Part(), Part()], chain(2), batch_size=4))


def slower(trace: Trace, stage: int, kind: str, seconds: float) -> Trace:
    spans = tuple(
        replace(span, end_seconds=span.end_seconds + seconds) if (span.stage, span.kind) == (stage, kind) else span
        for span in trace.spans
    )
    return replace(trace, source="measured", spans=spans, step_seconds=trace.step_seconds + 4 * seconds)


def test_a_trace_does_not_differ_from_itself():
    found = compare(PREDICTED, PREDICTED)
    assert found.step_error == 0
    assert all(one.total_seconds == 0 for one in found.differences)
    kinds = {(one.stage, one.kind): one.count for one in found.differences}
    assert kinds[0, "F"] == kinds[1, "B"] == kinds[0, "send"] == 4


def test_the_largest_difference_comes_first():
    measured = slower(slower(PREDICTED, 0, "F", 0.25), 1, "B", 1.0)
    found = compare(PREDICTED, measured)
    first, second = found.differences[:2]
    assert (first.stage, first.kind, first.predicted_seconds, first.measured_seconds) == (1, "B", 2, 3)
    assert (second.stage, second.kind, second.total_seconds) == (0, "F", 4 * 0.25)
    assert found.step_error == pytest.approx(15 / 20 - 1)


def test_kinds_that_only_one_side_recorded_are_left_out():
    measured = replace(PREDICTED, spans=tuple(span for span in PREDICTED.spans if span.kind == "F"))
    assert {one.kind for one in compare(PREDICTED, measured).differences} == {"F"}


def test_traces_of_different_plans_are_refused():
    with pytest.raises(InvalidInput, match="the measured one of plan other"):
        compare(PREDICTED, replace(PREDICTED, plan_fingerprint="other"))
