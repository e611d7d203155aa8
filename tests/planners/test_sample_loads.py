"""Planners cut for the expected loads of samples."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from problems import cluster, random_problem, table, towers

import graphpipe as gp
from graphpipe.costs import CostTable, Curve, SampleLoad, declare_loads
from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS, planner_names
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds

OPS = ("a", "b", "c", "d", "e")
GRAPH = Graph(
    name="chain",
    ops=tuple(Op(name=name) for name in OPS),
    edges=tuple(Edge(source=one, target=other, bytes_per_sample=1e3) for one, other in pairwise(OPS)),
)
MIX = {1: 0.25, 2: 0.25, 4: 0.5}
"""A mean load of 2.75."""


def times(costs: CostTable, factors: dict[str, float]) -> CostTable:
    """Return costs whose seconds per sample are multiplied by a factor for some operators."""

    def row(op: str, *curves: Curve) -> list[Curve]:
        scale = factors.get(op, 1.0)
        return [replace(it, lines=tuple((fixed, scale * slope) for fixed, slope in it.lines)) for it in curves]

    rows = []
    for each in costs.rows:
        forward, first, second = row(each.op, each.forward, each.input_gradient, each.weight_gradient)
        rows.append(replace(each, forward=forward, input_gradient=first, weight_gradient=second))
    return replace(costs, rows=tuple(rows))


@pytest.mark.parametrize("seed", range(4))
def test_the_cut_is_the_best_for_the_expected_loads(seed: int) -> None:
    """All cuts of a chain of 5 operators into 3 stages or fewer, with micro-batches of one sample."""
    rng = random.Random(seed)
    costs = table(GRAPH, {name: (0.0, rng.choice([1e-3, 2e-3])) for name in OPS})
    one, other = rng.sample(OPS, 2)
    loads = {one: MIX, other: {0: 0.5, 2: 0.25, 3: 0.25}}
    alone = {"schedule": "1f1b", "stages_per_device": 1}
    plan = gp.plan(GRAPH, costs, cluster(3), batch_size=16, micro_batch=1, loads=loads, **alone)
    expected, found = times(costs, {one: 2.75, other: 1.25}), list[float]()
    for count in range(3):
        for cuts in combinations(range(1, 5), count):
            stages = [
                gp.HandStage(ops=OPS[start:end], devices=(number,), micro_batch=1)
                for number, (start, end) in enumerate(pairwise((0, *cuts, 5)))
            ]
            drawn = gp.hand_plan(GRAPH, expected, cluster(3), batch_size=16, stages=stages)
            found.append(step_seconds(drawn))
    assert step_seconds(plan) == pytest.approx(min(found))


def test_a_heavier_operator_moves_the_cut() -> None:
    costs = table(GRAPH, dict.fromkeys(OPS, (0.0, 1e-3)))

    def cut(**loads: dict[float, float]) -> list[tuple[str, ...]]:
        alone = {"schedule": "1f1b", "stages_per_device": 1}
        plan = gp.plan(GRAPH, costs, cluster(2), batch_size=16, micro_batch=1, loads=loads, **alone)
        return [stage.ops for stage in plan.stages]

    assert cut() in ([("a", "b"), ("c", "d", "e")], [("a", "b", "c"), ("d", "e")])
    assert cut(a={3: 0.5, 5: 0.5}) == [("a",), ("b", "c", "d", "e")]
    assert cut(e={3: 0.5, 5: 0.5}) == [("a", "b", "c", "d"), ("e",)]


@pytest.mark.parametrize("planner", sorted(planner_names(trains=True)))
def test_every_planner_plans_as_if_each_sample_had_the_expected_load(planner: str) -> None:
    problem = random_problem(7)
    first, second = problem.graph.order[:2]
    loads = declare_loads(problem.graph, {first: {2: 0.5, 4: 0.5}, second: {0: 0.5, 0.5: 0.5}})
    mixed = Problem(problem.graph, replace(problem.costs, loads=loads), problem.cluster, problem.batch_size)
    costs = times(problem.costs, {first: 3.0, second: 0.25})
    expected = Problem(problem.graph, costs, problem.cluster, problem.batch_size)
    one, other = (PLANNERS[planner].plan(each, Options(evaluate=step_seconds)) for each in (mixed, expected))
    assert one.stages == other.stages
    assert step_seconds(one) == step_seconds(other)


@pytest.mark.parametrize("planner", sorted(planner_names(trains=True)))
def test_every_planner_leaves_room_for_the_largest_load(planner: str) -> None:
    """16 samples keep 4e9 bytes of 4 layers, and 16e9 if each may have a load of 4, which a device does not have."""
    problem = towers([8], 2, 16, saved_bytes=1e9 / 16, memory_bytes=10e9)
    rare = declare_loads(problem.graph, {"b0": {1: 0.99, 4: 0.01}})
    problem = Problem(problem.graph, replace(problem.costs, loads=rare), problem.cluster, problem.batch_size)
    plan = PLANNERS[planner].plan(problem, Options(evaluate=step_seconds))
    verify(plan)
    for stage in plan.stages:
        layers = sum(op.startswith("b0") for op in stage.ops)
        assert stage.recompute != "none" or stage.in_flight / stage.degree * layers * 4e9 / 16 <= 10e9


def test_the_plan_records_what_was_declared() -> None:
    problem = towers([2, 2], 4, 8)
    plan = gp.plan(problem.graph, problem.costs, problem.cluster, batch_size=8, loads={"b0": [1, 4, 1, 4]})
    assert plan.costs.loads == (SampleLoad(name="b0", ops=("b0.0", "b0.1"), loads=(1.0, 4.0), shares=(0.5, 0.5)),)
    assert plan.prediction is not None
    assert plan.prediction.step_seconds > step_seconds(plan)
