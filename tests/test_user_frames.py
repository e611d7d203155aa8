"""Warnings name the line of the user's code."""

from pathlib import Path

import pytest
from builders import Part, make_plan

import graphpipe as gp


def test_a_warning_is_at_the_line_that_called_the_package() -> None:
    """It was at a line of choose_splits.py, because the number of functions between was counted by hand."""
    plan = make_plan([Part(saved_bytes=10.0)], [], batch_size=2)
    stage = gp.HandStage(ops=("s0",), devices=(0,), micro_batch=1, recompute=("s0",))
    with pytest.warns(
        UserWarning, match="needs 10 B with what it recomputes or offloads, and as much without"
    ) as caught:
        gp.hand_plan(plan.graph, plan.costs, plan.cluster, batch_size=2, stages=[stage])
    assert [Path(each.filename) for each in caught] == [Path(__file__)]
