"""Plans written by hand."""

import warnings

import pytest
from builders import Part, chain, make_plan

from graphpipe.errors import InvalidInput
from graphpipe.planners.problem.partition import Problem
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand


def test_recomputing_that_frees_nothing_is_remarked():
    """`image.layer1*` recomputed each operator alone, which keeps what the next one reads, and nobody was told."""
    plan = make_plan([Part(saved_bytes=1.0), Part()], chain(2, 1.0))
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    whole = HandStage(ops=("s0", "s1"), devices=(0,), micro_batch=1, recompute="full")
    alone = HandStage(ops=("s0", "s1"), devices=(0,), micro_batch=1, recompute=("s*",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_by_hand(problem, HandPlan(stages=(whole,)))
    with pytest.warns(UserWarning, match=r"stage 's0' needs 2 B with what it recomputes or offloads, and 1 B without"):
        plan_by_hand(problem, HandPlan(stages=(alone,)))


@pytest.mark.parametrize(("name", "where"), [("", "stages, number 1"), ("last", "stage 'last'")])
def test_a_stage_without_operators_is_refused(name: str, where: str) -> None:
    """It ended in an IndexError, for lack of a name to call it by."""
    plan = make_plan([Part(), Part()], chain(2, 1.0))
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    every = HandStage(ops=("s*",), devices=(0,), micro_batch=1)
    empty = HandStage(ops=(), devices=(1,), micro_batch=1, name=name)
    with pytest.raises(InvalidInput, match=f"{where}: has no operators"):
        plan_by_hand(problem, HandPlan(stages=(every, empty)))
