"""Remembered searches: one for equal numbers and clusters, and the same graphs, costs and functions."""

from dataclasses import replace

from problems import towers

from graphpipe.planners.problem.options import Options
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans import Plan
from graphpipe.simulator import step_seconds
from tests.support.builders import Part, chain, make_plan


def test_a_search_is_repeated_only_for_what_matters_to_it():
    problem, plan, asked = towers([1], 2, 8), make_plan([Part(), Part()], chain(2)), list[int]()

    def find() -> list[Plan]:
        asked.append(len(asked))
        return [plan]

    remembered, cluster = Options().remembered, problem.cluster
    roomier = replace(cluster, device_types=(replace(cluster.device_types[0], memory_bytes=1e15),))
    for wanted in (
        [problem.graph, cluster, 8, "none"],
        [problem.graph, replace(cluster), 8, "none"],
        [replace(problem.graph), cluster, 8, "none"],
        [problem.graph, roomier, 8, "none"],
        [problem.graph, cluster, 4, "none"],
        [problem.graph, cluster, 8, "full"],
    ):
        assert remembered.plans(wanted, find)[0] is plan
    assert len(asked) == 5


def test_more_stages_per_device_continue_the_search_for_one():
    seen = list[Plan]()

    def evaluate(plan: Plan) -> float:
        seen.append(plan)
        return step_seconds(plan)

    problem, options = towers([1], 2, 8), Options(evaluate=evaluate)
    alone = PLANNERS["graphpipe"].plan(problem, options)
    count = len(seen)
    assert PLANNERS["graphpipe"].plan(problem, replace(options, stages_per_device=2)) is alone
    assert len(seen) == count
    # Full recomputation is another problem.
    assert PLANNERS["graphpipe"].plan(replace(problem, recompute="full"), options).stages != alone.stages
