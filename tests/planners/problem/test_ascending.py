"""Plans in the order of their seconds, of which few are evaluated."""

from dataclasses import replace

from graphpipe.planners.problem.ascending import Ascending
from graphpipe.plans import Plan
from tests.support.builders import Part, chain, make_plan

PLAN = make_plan([Part(), Part()], chain(2))


def test_a_plan_with_a_late_bound_is_never_evaluated():
    seconds, asked = {"a": 4.0, "b": 3.0, "c": 3.0, "d": 9.0}, list[str]()

    def evaluate(plan: Plan) -> float:
        asked.append(plan.planner)
        return seconds[plan.planner]

    order = Ascending(evaluate)
    for name, least in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 5.0)):
        order.add(replace(PLAN, planner=name), least)
    assert [order.seconds_at(position) for position in (1, 2, 4, 9)] == [3.0, 4.0, float("inf"), float("inf")]
    assert asked == ["a", "b", "c"]
    found = iter(order)
    # Of equals the earlier one comes first.
    assert [next(found).planner for _ in range(3)] == ["b", "c", "a"]
    assert asked == ["a", "b", "c"]
    assert [each.planner for each in found] == ["d"]
