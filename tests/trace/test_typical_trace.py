"""The typical step is the mean of the steps in the middle, span by span."""

from dataclasses import replace

import pytest
from builders import Part, make_plan

from graphpipe.simulator.simulate import simulate
from graphpipe.trace import Trace, typical_trace

STEP = simulate(make_plan([Part(), Part()]))


def _longer(times: float) -> Trace:
    return replace(STEP.divided(1 / times), slowdown=1.0)


def test_a_disturbed_step_does_not_count() -> None:
    """Of four steps, the shortest and the longest do not. Every span begins and ends at the means of the others."""
    found = typical_trace([_longer(times) for times in (100.0, 2.0, 4.0, 1.0)])
    assert found.step_seconds == pytest.approx(3 * STEP.step_seconds)
    assert [span.end_seconds for span in found.spans] == pytest.approx([3 * span.end_seconds for span in STEP.spans])
    assert [span.start_seconds for span in found.spans] == pytest.approx(
        [3 * span.start_seconds for span in STEP.spans]
    )


def test_one_step_is_typical() -> None:
    assert typical_trace([STEP]) == STEP


def test_a_step_with_other_spans_than_the_median_one_does_not_count() -> None:
    """Its spans cannot be compared one by one."""
    other = replace(_longer(2.0), spans=STEP.spans[1:])
    assert typical_trace([other, _longer(3.0), _longer(3.0)]).step_seconds == pytest.approx(3 * STEP.step_seconds)
