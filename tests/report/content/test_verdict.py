"""The first sentence of a report says whether the prediction held, and what limits the step."""

from dataclasses import replace

import pytest
from subjects import PREDICTED, slower, whole_subject

from graphpipe.report.content.subject import Subject
from graphpipe.report.content.verdict import verdict


def sentence(subject: Subject) -> str:
    found = verdict(subject)
    assert found is not None
    return found.sentence


def test_a_run_is_held_against_its_prediction() -> None:
    whole = whole_subject()
    step = PREDICTED.step_seconds
    assert f"A step took {1.25 * step:.1f} s, 1.2 times as long as predicted ({step:.1f} s). Most of it is" in sentence(
        whole
    )
    assert "as predicted (" in sentence(replace(whole, measured=slower(PREDICTED, 1.05)))
    assert "times as fast as predicted" in sentence(replace(whole, measured=slower(PREDICTED, 0.5)))
    assert "The prediction is of a step." in sentence(
        replace(whole, measured=replace(slower(PREDICTED, 2.0), batch_size=2 * PREDICTED.batch_size))
    )


def test_the_figures_have_names_of_their_own() -> None:
    found = verdict(whole_subject())
    assert found is not None
    names = [name for name, _ in found.figures]
    assert names[0] == "step, predicted"
    assert names[1] == "step, measured, traced"
    assert names[2].startswith("step, median of ")
    assert names[3] == "limited by"
    assert len(set(names)) == len(names)


def test_a_plan_says_what_limits_it() -> None:
    whole = whole_subject()
    alone = Subject(title="", plan=whole.plan, predicted=whole.predicted)
    assert sentence(alone).startswith("A step is predicted to take ")
    assert "compute" in sentence(alone)
    assert "limited" not in sentence(Subject(title="", predicted=whole.predicted))  # stages and devices are unknown
    assert verdict(replace(alone, predicted=replace(PREDICTED, spans=(), step_seconds=0.0))) is None


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_ratios_are_of_the_measured_step(factor: float) -> None:
    whole = replace(whole_subject(), measured=slower(PREDICTED, factor))
    assert "10.0 times as" in sentence(whole)
