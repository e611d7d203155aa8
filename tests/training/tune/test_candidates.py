"""Candidates differ in what ranks do, and keep what the user has set."""

from dataclasses import replace

from builders import Part, make_plan
from problems import towers

from graphpipe.planning.settings import PlanSettings
from graphpipe.training.tune.candidates import Candidate, candidates, distinct, shape_of


def _found(settings: PlanSettings, *, count: int = 9, over: bool = False) -> list[Candidate]:
    problem = towers([2, 2], 3, 8)
    return candidates(
        problem.graph,
        problem.costs,
        problem.cluster,
        settings,
        batch_size=problem.batch_size,
        count=count,
        ends=lambda: over,
    )


def test_no_two_are_the_same_and_the_best_predicted_comes_first() -> None:
    """Names of stages and costs do not make another candidate."""
    found = _found(PlanSettings(), count=5)
    assert 1 < len(found) <= 5
    assert len({shape_of(each.plan) for each in found}) == len(found)
    seconds = [each.predicted_seconds for each in found]
    assert seconds == sorted(seconds)
    first = found[0]
    renamed = replace(first.plan, stages=tuple(replace(stage, name=stage.name + "x") for stage in first.plan.stages))
    assert distinct([first, replace(first, plan=renamed)]) == [first]


def test_schedules_that_order_tasks_alike_are_one_candidate() -> None:
    """With one micro-batch each, four of six plans that were tried did the same."""
    plan = make_plan([Part(micro_batch=8), Part(micro_batch=8)])
    assert shape_of(plan) == shape_of(replace(plan, schedule="gpipe"))
    plan = make_plan([Part(micro_batch=2), Part(micro_batch=2)])
    assert shape_of(plan) != shape_of(
        replace(plan, schedule="gpipe", stages=tuple(replace(stage, in_flight=8) for stage in plan.stages))
    )


def test_what_the_user_has_set_stays() -> None:
    """With a planner and a schedule of the user's, only micro-batches are left to vary."""
    found = _found(PlanSettings(planner="gpipe", schedule="gpipe"))
    assert {(each.plan.planner, each.plan.schedule) for each in found} == {("gpipe", "gpipe")}


def test_one_plan_is_made_when_the_time_is_over() -> None:
    """It is the one that was asked for."""
    found = _found(PlanSettings(), over=True)
    assert [each.asked for each in found] == [""]
