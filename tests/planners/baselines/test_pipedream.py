"""PipeDream: the published partition of vgg16, and both forms compared with every pipeline."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from baseline_oracles import Pipeline, all_reduce, best, busy_problem, compute, cuts, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import towers
from published_pipedream import Level, pipedream

from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Edge, Graph, Measured, Op, read_pipedream
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.stage import WeightPolicy
from graphpipe.plans.verify import verify

DATA = Path(__file__).parents[4] / "shared" / "data" / "pipedream" / "vgg16.graph.txt"
real = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")


def slowest(problem: Problem, micro_batch: int, pipeline: Pipeline) -> float:
    ends = cuts(problem, pipeline)
    return max(
        max(
            compute(problem, micro_batch, ops, degree) + all_reduce(problem, ops, degree) / problem.batch_size,
            ends[at] / degree,
            ends[at + 1] / degree,
        )
        for at, (ops, degree, _) in enumerate(pipeline)
    )


@real
def test_vgg16_on_four_machines_as_published() -> None:
    found = pipedream(read_pipedream(DATA), [Level(machines=4, bytes_per_second=1e9)])
    assert [(stage.start, stage.stop, stage.replicas) for stage in found.stages] == [(0, 17, 3), (17, 40, 1)]
    assert found.seconds == pytest.approx(0.205521, abs=5e-7)
    assert found.single_seconds / found.seconds == pytest.approx(3.272, abs=5e-4)


@real
def test_two_levels_replicate_the_stages_of_a_node() -> None:
    levels = [Level(machines=4, bytes_per_second=1e10), Level(machines=4, bytes_per_second=1e9)]
    graph = read_pipedream(DATA)
    found = pipedream(graph, levels)
    assert sum(stage.replicas for stage in found.stages) == 16
    assert [op for stage in found.stages for op in stage.ops] == list(graph.order)
    one = pipedream(graph, levels[1:])
    assert found.seconds < one.seconds


def profiled(seed: int) -> Graph:
    problem = busy_problem(seed, most_ops=6)
    seconds = [1.0 + (seed >> at & 3) for at in range(len(problem.graph.ops))]
    ops = tuple(
        Op(
            name=op.name,
            parameter_bytes=op.parameter_bytes,
            output_bytes_per_sample=1e6 * (at % 3),
            measured=Measured(forward_seconds=seconds[at] / 3, backward_seconds=seconds[at] * 2 / 3, samples=2),
        )
        for at, op in enumerate(problem.graph.ops)
    )
    return Graph(name="profiled", ops=ops, edges=problem.graph.edges)


def least(graph: Graph, machines: int, bandwidth: float) -> float:
    """The published objective, minimised over every sequence of predecessor-closed sets by plain recursion."""
    names = [op.name for op in graph.ops]
    before = [{names.index(other) for other in graph.predecessors[name]} for name in names]
    after = [{names.index(other) for other in graph.successors[name]} for name in names]
    whole = frozenset(range(len(names)))
    subsets = [frozenset(at for at in whole if mask >> at & 1) for mask in range(1 << len(names))]
    states = [state for state in subsets if all(before[at] <= state for at in state)]

    def out(state: frozenset[int]) -> float:
        if state == whole:
            return 0.0
        return sum(2 * graph.ops[at].output_bytes_per_sample for at in state if after[at] - state)

    @cache
    def rest(done: frozenset[int], left: int) -> float:
        if done == whole:
            return 0.0 if left == 0 else float("inf")
        found = float("inf")
        for state in states:
            if not done < state:
                continue
            inside = [graph.ops[at] for at in state - done]
            measured = [op.measured for op in inside if op.measured]
            work = sum(one.forward_seconds + one.backward_seconds for one in measured)
            sync = 4 * sum(op.parameter_bytes for op in inside) / bandwidth
            for m in range(1, left + 1):
                stage = (work + sync * (m - 1) / m) / m
                # The recurrence counts both ends of every stage but the first.
                moved = max(out(done), out(state)) * 2 / (bandwidth * m) if done else 0.0
                found = min(found, max(stage, moved, rest(state, left - m)))
        return found

    return rest(frozenset(), machines)


@given(seed=st.integers(0, 10**9), machines=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_the_published_programme_is_optimal_over_all_antichain_states(seed: int, machines: int) -> None:
    graph = profiled(seed)
    found = pipedream(graph, [Level(machines=machines, bytes_per_second=1e6)])
    assert found.seconds == pytest.approx(least(graph, machines, 1e6), rel=1e-9)


def test_a_wide_graph_has_too_many_states() -> None:
    ops = tuple(
        Op(name=f"o{at}", measured=Measured(forward_seconds=1, backward_seconds=1, samples=1)) for at in range(12)
    )
    with pytest.raises(Infeasible, match=r"too many downsets \(N > 2,000\)"):
        pipedream(Graph(name="wide", ops=ops, edges=()), [Level(machines=2, bytes_per_second=1e9)])


def test_a_graph_without_times_is_refused() -> None:
    graph = Graph(name="g", ops=(Op(name="a"), Op(name="b")), edges=(Edge(source="a", target="b"),))
    with pytest.raises(InvalidInput, match="op a: has no measured times"):
        pipedream(graph, [Level(machines=2, bytes_per_second=1e9)])


@given(
    seed=st.integers(0, 10**9),
    micro_batch=st.sampled_from([1, 2, 4, 16]),
    tight=st.booleans(),
    weights=st.sampled_from(["flush", "stash"]),
)
@settings(max_examples=20, deadline=None)
def test_the_planner_is_optimal_over_the_linear_order(
    seed: int, micro_batch: int, tight: bool, weights: WeightPolicy
) -> None:
    problem = replace(busy_problem(seed, tight=tight), weights=weights)
    found, plan = planned("pipedream", problem, micro_batch, slowest)
    assert found == pytest.approx(best(problem, micro_batch, slowest), rel=1e-9)
    if plan:
        verify(plan)


def test_its_stages_are_a_chain_though_branches_are_independent() -> None:
    problem = towers([4, 4], 4, 16, parameter_bytes=1e9)
    _, plan = planned("pipedream", problem, 2, slowest)
    assert plan is not None
    assert (plan.depth, len(plan.stages)) == (4, 4)
    assert [stage.in_flight for stage in plan.stages] == [8, 6, 4, 2]
