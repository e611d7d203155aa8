"""Warnings name the line of the user's code."""

from pathlib import Path

import pytest
from builders import Part, make_plan

import graphpipe as gp
from graphpipe.user_frames import user_place_in


def test_a_warning_is_at_the_line_that_called_the_package() -> None:
    """It was at a line of choose_splits.py, because the number of functions between was counted by hand."""
    plan = make_plan([Part(saved_bytes=10.0)], [], batch_size=2)
    stage = gp.HandStage(ops=("s0",), devices=(0,), micro_batch=1, recompute=("s0",))
    with pytest.warns(
        UserWarning, match="needs 10 B with what it recomputes or offloads, and as much without"
    ) as caught:
        gp.hand_plan(plan.graph, plan.costs, plan.cluster, batch_size=2, stages=[stage])
    assert [Path(each.filename) for each in caught] == [Path(__file__)]


def test_a_place_in_a_library_is_named_if_there_is_none_in_the_users_files() -> None:
    """The Conformer of torchaudio was refused without the place where it asks for the longest sample."""
    installed = '  File "/env/lib/python3.11/site-packages/{}", line {}, in forward\n'
    text = installed.format("torchaudio/models/conformer.py", 11) + installed.format("torch/nn/modules/module.py", 7)
    assert user_place_in(text) == "torchaudio/models/conformer.py, line 11, in forward"
    assert user_place_in('  File "/home/me/model.py", line 3, in forward\n' + text) == "model.py, line 3, in forward"
