"""Remembered seconds: equal plans are computed once, and a limit is only remembered as a limit."""

from dataclasses import replace
from math import inf

from graphpipe.planning.remembered_seconds import RememberedSeconds
from graphpipe.plans import Plan
from tests.support.builders import Part, chain, make_plan


def test_equal_plans_are_computed_once():
    plan, asked = make_plan([Part(), Part()], chain(2)), list[tuple[str, float]]()

    def seconds(plan: Plan, limit: float) -> float:
        asked.append((plan.schedule, limit))
        return 3.0 if limit >= 3.0 else inf

    remembered, other = RememberedSeconds(seconds), replace(plan, schedule="gpipe")
    assert [remembered(plan, limit) for limit in (1.0, 0.5, 2.0, inf, 1.0)] == [inf, inf, inf, 3.0, 3.0]
    assert asked == [("1f1b", 1.0), ("1f1b", 2.0), ("1f1b", inf)]
    assert [remembered(replace(plan, planner="another")), remembered(other), len(asked)] == [3.0, 3.0, 4]
    faster = replace(other, cluster=replace(plan.cluster, name="faster"))
    assert [remembered(faster), len(asked)] == [3.0, 5]
