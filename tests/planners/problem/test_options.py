"""The best of some plans: few are evaluated, and of equals the first is taken."""

from dataclasses import replace

from graphpipe.planners.problem.limits import NORMAL
from graphpipe.planners.problem.options import Options
from graphpipe.plans import Plan
from graphpipe.plans.estimates import estimated_step_seconds, least_step_seconds
from tests.support.builders import Part, chain, make_plan

SLOW, QUICK = (
    replace(make_plan([Part(forward=seconds), Part(forward=seconds)], chain(2), batch_size=4), planner=name)
    for name, seconds in (("slow", 8.0), ("quick", 1.0))
)


def test_a_plan_is_evaluated_if_its_bounds_are_better_than_the_best_so_far() -> None:
    asked = list[str]()

    def evaluate(plan: Plan) -> float:
        asked.append(plan.planner)
        return estimated_step_seconds(plan)

    def least(plan: Plan) -> float:
        return 1e9 if plan.planner == "late" else 0.0

    options = Options(evaluate=evaluate, least=least)
    assert options.best([SLOW]) is SLOW
    assert asked == []
    equal, late = replace(QUICK, planner="equal"), replace(QUICK, planner="late")
    assert options.best(iter([SLOW, QUICK, late, equal, SLOW])) is QUICK
    assert asked == ["slow", "quick", "equal"]
    worse = replace(QUICK, planner="worse")
    known = {"slow": 8.0, "quick": 7.0, "worse": 9.0}
    assert Options(evaluate=lambda plan: known[plan.planner] * 1e3).best([SLOW, QUICK, worse]) is QUICK
    # A bound that is as large as the best plan's seconds can gain nothing.
    exact = Options(evaluate=evaluate, least=estimated_step_seconds)
    asked.clear()
    assert exact.best([QUICK, equal]) is QUICK
    assert asked == ["quick"]
    asked.clear()
    assert Options(evaluate=lambda plan: evaluate(plan) and least_step_seconds(plan)).best([QUICK, equal]) is QUICK
    assert asked == ["quick"]


def test_sizes_are_the_divisors_or_the_one_that_is_asked_for() -> None:
    assert Options().sizes(6) == [1, 2, 3, 6]
    assert Options(micro_batch=2).sizes(6) == [2]


def test_what_is_searched_if_nothing_is_said() -> None:
    options = Options()
    assert options.evaluate is estimated_step_seconds
    assert options.least(QUICK) == 0.0
    assert options.ranked(QUICK, 0.0) == estimated_step_seconds(QUICK)
    assert (options.stages_per_device, options.most_seconds, options.effort) == (1, float("inf"), NORMAL)
    assert not options.splits_backward
    assert not options.mixed_micro_batches
