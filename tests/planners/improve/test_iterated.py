"""Plans that small changes do not improve are left by random changes, and never become slower."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from problems import towers

from graphpipe.planners.improve.iterated import iterated
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.plans import Plan

PROBLEM = towers([2, 2], 4, 8)


def plan_of_size(problem: Problem, size: int) -> Plan:
    return assemble(problem, [Part(problem.graph.order, 1, size)], planner="test")


SECONDS = {1: 4.0, 2: 5.0, 4: 6.0, 8: 1.0}
"""By micro-batch size. Small changes do not leave 1: its only neighbour is slower, and so is the next."""


def neighbours(plan: Plan) -> Sequence[Callable[[], Plan | None]]:
    size = plan.stages[0].micro_batch
    return [
        lambda: None,
        *(partial(plan_of_size, PROBLEM, near) for near in (size // 2, size * 2) if near in SECONDS),
    ]


def climb(plan: Plan) -> tuple[float, Plan]:
    size = plan.stages[0].micro_batch
    best = min((near for near in (size // 2, size, size * 2) if near in SECONDS), key=SECONDS.__getitem__)
    return SECONDS[best], plan_of_size(PROBLEM, best)


@pytest.mark.parametrize(("kicks", "seconds"), [(0, 4.0), (20, 1.0)])
def test_random_changes_lead_over_a_hill(kicks: int, seconds: float) -> None:
    assert climb(plan_of_size(PROBLEM, 1))[0] == SECONDS[1]
    found, plan = iterated(plan_of_size(PROBLEM, 1), SECONDS[1], range(kicks), climb, neighbours)
    assert found == seconds == SECONDS[plan.stages[0].micro_batch]


def test_a_worse_optimum_is_not_kept() -> None:
    best = plan_of_size(PROBLEM, 8)
    assert iterated(best, SECONDS[8], range(20), climb, neighbours) == (SECONDS[8], best)


def test_the_same_call_gives_the_same_plan() -> None:
    start = plan_of_size(PROBLEM, 1)
    one, other = (iterated(start, SECONDS[1], range(3), climb, neighbours) for _ in range(2))
    assert one == other


def test_a_plan_that_does_not_fit_is_not_climbed() -> None:
    graph = PROBLEM.graph
    small = replace(
        PROBLEM.cluster,
        device_types=tuple(replace(kind, memory_bytes=1.0) for kind in PROBLEM.cluster.device_types),
    )
    tight = Problem(graph, PROBLEM.costs, small, PROBLEM.batch_size)
    start = plan_of_size(tight, 1)

    def only(plan: Plan) -> tuple[float, Plan]:
        assert plan is start
        return 4.0, plan

    changes = [partial(plan_of_size, tight, 2)]
    assert iterated(start, 4.0, range(3), only, lambda _: changes) == (4.0, start)
