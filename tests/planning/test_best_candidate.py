"""The best of several plans under a schedule: which of them are evaluated."""

from dataclasses import replace

import pytest
from problems import towers

from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.planners.problem.partition import Part, assemble
from graphpipe.planning.best_candidate import BestCandidate
from graphpipe.planning.remembered_seconds import RememberedSeconds
from graphpipe.plans import Plan
from graphpipe.simulator import step_seconds


def halved(batch_size: int) -> list[Plan]:
    """Return a chain of four layers and a join on two devices, cut after one layer, after two and after three."""
    problem = towers([4], 2, batch_size)
    names = problem.graph.order
    return [assemble(problem, [Part(names[:at], 1, 1), Part(names[at:], 1, 1)], planner="test") for at in (1, 2, 3)]


def evaluated(plans: list[Plan]) -> tuple[Plan, list[int]]:
    """Return the best plan, and the layers in the first stage of the plans that were evaluated."""
    found: list[int] = []

    def noted(plan: Plan) -> float:
        found.append(len(plan.stages[0].ops))
        return step_seconds(plan)

    return BestCandidate(choice="1f1b", evaluate=noted)(plans), sorted(set(found))


def test_plans_of_so_many_tasks_that_no_change_is_tried_are_evaluated_only_if_they_may_be_the_best() -> None:
    few, many = halved(8), halved(2048)
    assert evaluated(few)[1][:3] == [1, 2, 3]
    best, noted = evaluated(many)
    assert noted == [2]
    assert best.stages == many[1].stages


def test_samples_in_flight_that_1f1b_cannot_order_leave_the_plan_its_own_schedule() -> None:
    """The plan of a search was scheduled again on 17 devices. Its stages kept more in flight than those before them, as
    `zb-auto` had chosen, so 1F1B waits for ever, and `gp.plan` ended with that error."""
    problem = towers([6], 3, 2048)  # of so many tasks that no small change is tried
    names = problem.graph.order
    drawn = assemble(problem, [Part(names[at : at + 2], 1, 1) for at in (0, 2)] + [Part(names[4:], 1, 1)], planner="t")
    in_flight = (2, 6, 6)
    stages = tuple(replace(stage, in_flight=count) for stage, count in zip(drawn.stages, in_flight, strict=True))
    plan = replace(drawn, stages=stages)
    with pytest.raises(InvalidInput, match="wait for each other forever"):
        step_seconds(plan)
    best = BestCandidate(choice="auto", evaluate=RememberedSeconds(lambda plan, _: step_seconds(plan)))([plan])
    assert best.schedule == "zb-auto"
    with pytest.raises(Infeasible, match="wait for each other forever"):
        BestCandidate(choice="1f1b", evaluate=step_seconds)([plan])
