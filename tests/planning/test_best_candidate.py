"""The best of several plans under a schedule: which of them are evaluated."""

from problems import towers

from graphpipe.planners.problem.partition import Part, assemble
from graphpipe.planning.best_candidate import BestCandidate
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
