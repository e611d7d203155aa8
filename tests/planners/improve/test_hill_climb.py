"""Hill climbing near a plan: what it improves, what it keeps, and that it never makes a plan slower."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import cluster, random_problem, table, towers

from graphpipe.cluster import Link
from graphpipe.graph import Edge, Graph, Op
from graphpipe.planners.improve.hill_climb import hill_climb
from graphpipe.planners.problem.limits import WORTH
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble
from graphpipe.planners.registry import PLANNERS
from graphpipe.plans import Plan
from graphpipe.plans.verify import verify
from graphpipe.simulator import step_seconds


def seconds(plan: Plan, limit_seconds: float = inf) -> float:
    found = step_seconds(plan)
    return found if found <= limit_seconds else inf


def line(count: int, fixed: float = 0.0) -> Problem:
    """Return equal operators in a chain on two devices, each `fixed` seconds and one per sample for every pass.

    Replicas would need a thousand seconds to sum the gradients of an operator.
    """
    ops = tuple(Op(name=f"o{n}", parameter_bytes=1e8) for n in range(count))
    edges = tuple(Edge(source=f"o{n}", target=f"o{n + 1}") for n in range(count - 1))
    graph = Graph(name="line", ops=ops, edges=edges)
    slow = replace(cluster(2), intra_node=Link(latency_seconds=0.0, bandwidth_bytes_per_second=1e5))
    return Problem(graph, table(graph, {op.name: (fixed, 1.0) for op in ops}), slow, 8)


def cut(problem: Problem, at: int, size: int) -> Plan:
    names = problem.graph.order
    return assemble(problem, [Part(names[:at], 1, size), Part(names[at:], 1, size)], planner="test")


def test_operators_move_until_stages_are_even() -> None:
    problem = line(6)
    found = hill_climb(cut(problem, 1, 1), seconds, 100)
    assert [stage.ops for stage in found.stages] == [("o0", "o1", "o2"), ("o3", "o4", "o5")]
    # Nine seconds per micro-batch at each stage, and nine more to fill the pipeline.
    assert step_seconds(found) == pytest.approx(9 * 9)


def test_micro_batches_grow_if_each_has_a_fixed_cost() -> None:
    problem = line(2, fixed=4.0)
    found = hill_climb(cut(problem, 1, 1), seconds, 100)
    # Micro-batches of b take 3 (4 + b) seconds a stage, 8 / b + 1 of them: 135, 90, 72 and 72 for b = 1, 2, 4 and 8.
    assert [stage.micro_batch for stage in found.stages] == [4, 4]
    assert step_seconds(found) == pytest.approx(72)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("problem", [line(6), towers([3, 2], 4, 8)], ids=["line", "towers"])
def test_stages_that_alone_are_too_slow_change_no_evaluation(
    problem: Problem, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = PLANNERS["gpipe"].plan(problem, Options())

    def evaluated() -> list[object]:
        found: list[object] = []

        def evaluate(plan: Plan, limit_seconds: float) -> float:
            found.append((plan.stages, limit_seconds))
            return seconds(plan, limit_seconds)

        hill_climb(start, evaluate, 1000, whole_backwards=whole)
        return found

    early = evaluated()
    # Without the rejection of single stages, the lower bound of the whole plan rejects the same plans.
    monkeypatch.setattr("graphpipe.planners.improve.neighbours.Neighbours._least_seconds", lambda *_: 0.0)
    assert early == evaluated()


def test_changes_are_evaluated_up_to_the_seconds_that_are_worth_them() -> None:
    known: list[float] = []

    def noted(plan: Plan, limit_seconds: float) -> float:
        if known:  # The first evaluation is of the plan itself.
            assert limit_seconds == min(known) / WORTH
        found = seconds(plan, limit_seconds)
        known.append(found)
        return found

    found = hill_climb(cut(line(6), 1, 1), noted, 100)
    assert step_seconds(found) == min(known) < known[0]
    assert inf in known


def test_without_trials_the_plan_stays() -> None:
    start = cut(line(6), 1, 1)
    assert hill_climb(start, seconds, 0) is start


def test_a_whole_batch_stage_keeps_its_operators_and_micro_batch() -> None:
    plan = PLANNERS["graphpipe"].plan(towers([3, 2], 4, 8, whole_batch=True), Options(evaluate=step_seconds))
    found = hill_climb(plan, seconds, 100)
    verify(found)
    last = [(stage.ops, stage.micro_batch) for stage in found.stages if "join" in stage.ops]
    assert last == [(stage.ops, stage.micro_batch) for stage in plan.stages if "join" in stage.ops]


def test_plans_that_do_not_fit_in_memory_are_not_tried() -> None:
    problem = line(6)
    heavy = replace(problem.graph, ops=tuple(replace(op, parameter_bytes=1e9) for op in problem.graph.ops))
    costs = replace(problem.costs, graph_fingerprint=heavy.fingerprint)
    each = Problem(heavy, costs, problem.cluster, 8)
    state = cut(each, 1, 1).cost_model.parameter_bytes.state(("o0",))
    tight = replace(each, cluster=cluster(2, memory_bytes=5.5 * state))
    full = cut(tight, 5, 1)
    trialled: list[int] = []

    def noted(plan: Plan, limit_seconds: float) -> float:
        trialled.append(len(plan.stages[0].ops))
        return seconds(plan, limit_seconds)

    verify(hill_climb(full, noted, 100))
    assert max(trialled) == 5


@given(seed=st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_a_plan_stays_sound_and_never_gets_slower(seed: int) -> None:
    problem = random_problem(seed, most_ops=12, most_devices=4)
    plan = PLANNERS["pipedream"].plan(problem, Options(evaluate=step_seconds))
    found = hill_climb(plan, seconds, 30)
    verify(found)
    assert step_seconds(found) <= step_seconds(plan)


def test_operators_change_places_though_the_stages_stay_the_same() -> None:
    # A climb left out stages that it had tried, whichever devices hosted them. It tried a and b, which share a device,
    # in each other's place first. So a and c stayed where they were.
    seconds_of = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    graph = Graph(name="apart", ops=tuple(Op(name=name) for name in seconds_of), edges=())
    costs = table(graph, {name: (0.0, each) for name, each in seconds_of.items()})
    problem = Problem(graph, costs, cluster(2), 4)
    stages, devices = [Part((name,), 1, 4) for name in "abcd"], [(0,), (0,), (1,), (1,)]
    found = hill_climb(assemble(problem, stages, planner="test", devices=devices), seconds, 100)
    # Four samples of 3 (4 + 1) seconds on each device.
    assert step_seconds(found) == pytest.approx(4 * 3 * 5)
