"""The lower bound: worked out by hand, and compared with every plan of small problems."""

from dataclasses import replace
from random import Random
from statistics import mean

import pytest
from bound_problems import heavy_problem, least_bottleneck, random_hand
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from problems import best_bottleneck, cluster, random_problem, table, towers

from graphpipe.costs import State
from graphpipe.errors import Infeasible
from graphpipe.graph import Edge, Graph, Op, Shared, Work
from graphpipe.planners.lower_bound.lower_bound import bottleneck_bound, bottleneck_gap_percent, gap_percent, step_bound
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS, planner_names
from graphpipe.planning.by_hand import HandPlan, HandStage, plan_by_hand
from graphpipe.planning.choose_schedule import schedule_choices, scheduled
from graphpipe.plans.estimates import bottleneck_seconds, least_step_seconds
from graphpipe.simulator import predict, step_seconds

TRAINERS = st.sampled_from(planner_names(trains=True))


def test_by_hand() -> None:
    # 4 layers and a join of no cost, 3 ms per sample and layer: 8 samples are 96 ms of work.
    problem = towers([4], 2, 8, layer=(0.0, 1e-3), join=(0.0, 0.0))
    assert bottleneck_bound(problem) == pytest.approx(48e-3)
    # With 16 devices 6 ms each; four devices per layer synchronise 1 MB over 50 GB/s: 2 (4 - 1) / 4 of 20 us.
    many = towers([4], 16, 8, layer=(0.0, 1e-3), join=(0.0, 0.0))
    assert bottleneck_bound(many) == pytest.approx(6.03e-3)
    # The path to the last layer and back takes one sample 3 ms, plus its own forward and input gradient, 1 + 1.
    assert step_bound(many) == pytest.approx(8e-3)


@given(seed=st.integers(0, 10**9), micro_batch=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=20, deadline=None)
def test_every_partition_is_above_the_bound(seed: int, micro_batch: int) -> None:
    problem = random_problem(seed, most_ops=6)
    assert bottleneck_bound(problem) <= problem.batch_size * best_bottleneck(problem, micro_batch) * (1 + 1e-9)


def _of(curves: dict[str, float], devices: int, batch: int, *, chain: bool = False, **op: float) -> Problem:
    """Operators of `curves` seconds per sample and pass, one after the other or free."""
    work = Work(saved_bytes_per_sample=op.get("saved_bytes", 0.0))
    ops = tuple(Op(name=name, work=work, parameter_bytes=op.get("parameter_bytes", 0.0)) for name in curves)
    edges = tuple(Edge(source=a, target=b) for a, b in zip(curves, list(curves)[1:], strict=False)) if chain else ()
    graph = Graph(name="case", ops=ops, edges=edges)
    here = cluster(devices, memory_bytes=op.get("memory_bytes", 16e9))
    return Problem(graph, table(graph, {name: (0.0, seconds) for name, seconds in curves.items()}), here, batch)


def test_a_shared_parameter_is_held_and_updated_once() -> None:
    # Two operators with one parameter of 10 GB, whose update takes 10 s, on a device that holds it and no second one.
    problem = _of({"a": 1.0, "b": 1.0}, 1, 1, parameter_bytes=1e10, memory_bytes=4.1e10)
    ops = tuple(replace(op, parameters=("tied",)) for op in problem.graph.ops)
    graph = replace(problem.graph, ops=ops, shared=(Shared(name="tied", bytes=1e10),))
    costs = replace(problem.costs, graph_fingerprint=graph.fingerprint, optimizer_seconds_per_parameter_byte=1e-9)
    problem = replace(problem, graph=graph, costs=costs)
    plan = plan_by_hand(problem, HandPlan(stages=(HandStage(ops=("a", "b"), devices=(0,), micro_batch=1),)))
    assert bottleneck_seconds(plan) == pytest.approx(6 + 10)
    assert bottleneck_bound(problem) == pytest.approx(16)


def test_an_indivisible_sample_leaves_a_device_idle() -> None:
    # One sample cannot be split. Three operators of 3 s on two devices: one has two of them; the work is 4.5 s each.
    problem = _of({"a": 1.0, "b": 1.0, "c": 1.0}, 2, 1)
    assert bottleneck_bound(problem) == pytest.approx(6.0, rel=2e-3)


def test_a_stage_of_a_chain_is_unbroken() -> None:
    # 3 + 6 s would fill two devices evenly, if a stage could hold both ends of the chain.
    problem = _of({"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0, "e": 2.0}, 3, 1, chain=True)
    assert bottleneck_bound(problem, shared=False) == pytest.approx(9.0, rel=2e-3)
    assert bottleneck_bound(problem) == pytest.approx(9.0, rel=2e-3)
    ends = _of({"a": 1.0, "b": 3.0, "c": 1.0}, 2, 1, chain=True)
    assert bottleneck_bound(ends, shared=False) == pytest.approx(12.0, rel=2e-3)
    assert bottleneck_bound(ends) == pytest.approx(9.0, rel=2e-3)


def test_an_operator_that_must_be_replicated_pays_for_it() -> None:
    # Alone on one device 24 s. All four have 6 s and 2.4 / 4 s of the other, and an all-reduce of 2 x 3/4 x 0.1 s.
    ops = (Op(name="a", parameter_bytes=5e9), Op(name="b"))
    graph = Graph(name="case", ops=ops, edges=())
    problem = Problem(graph, table(graph, {"a": (0.0, 1.0), "b": (0.0, 0.1)}), cluster(4, memory_bytes=100e9), 8)
    assert bottleneck_bound(problem) == pytest.approx(6.0 + 0.15 + 0.6, rel=3e-3)


def test_memory_keeps_operators_apart_and_micro_batches_small() -> None:
    # 8 samples of 1 GB fit no device of 5 GB at once, 4 do: two micro-batches, each with a fixed second.
    op = Op(name="a", work=Work(saved_bytes_per_sample=1e9))
    graph = Graph(name="case", ops=(op,), edges=())
    problem = Problem(graph, table(graph, {"a": (1 / 3, 1 / 3)}), cluster(1, memory_bytes=5e9), 8)
    assert bottleneck_bound(problem) == pytest.approx(10.0)
    # 24 s alone, 12 s and the all-reduce on two devices: but twice the 4 GB of its state leave no room for the other.
    curves = {"a": 1.0, "b": 1e-3}
    assert bottleneck_bound(_of(curves, 2, 8, parameter_bytes=1e9, memory_bytes=16e9)) < 13.0
    assert bottleneck_bound(_of(curves, 2, 8, parameter_bytes=1e9, memory_bytes=4.8e9)) == pytest.approx(24.0)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=15, deadline=None)
def test_every_partition_of_heavy_operators_is_above_the_bound(seed: int) -> None:
    problem = heavy_problem(seed)
    sizes = tuple(b for b in range(1, problem.batch_size + 1) if problem.batch_size % b == 0)
    for allowed in (sizes, sizes[:2]):
        truth = least_bottleneck(problem, allowed) * (1 + 1e-9)
        free = bottleneck_bound(problem, sizes=allowed)
        assert free <= truth
        assert bottleneck_bound(problem, sizes=allowed, shared=False) <= truth


def test_the_bound_is_close_to_the_optimum() -> None:
    gaps: list[float] = []
    for seed in range(60):
        problem = heavy_problem(seed)
        truth = least_bottleneck(problem, (problem.batch_size,))
        if truth < float("inf"):
            gaps.append(truth / bottleneck_bound(problem, sizes=(problem.batch_size,), shared=False) - 1)
    assert len(gaps) > 30
    assert mean(gaps) < 0.05


@example(seed=7329, uneven=False)  # its step, 115 ms, has a reduction beside another stage's task; the bound was 123
@given(seed=st.integers(0, 10**9), uneven=st.booleans())
@settings(max_examples=12, deadline=None)
def test_every_plan_is_above_the_bound(seed: int, uneven: bool) -> None:
    problem = heavy_problem(seed, uneven=uneven)
    try:
        plan = plan_by_hand(problem, random_hand(problem, seed))
    except Infeasible:
        assume(False)
        return
    assert bottleneck_bound(problem) <= problem.batch_size * bottleneck_seconds(plan) * (1 + 1e-9)
    assert bottleneck_gap_percent(plan) >= -1e-6
    assert gap_percent(plan, predict(plan)) >= -1e-6
    assert step_bound(problem) <= step_seconds(plan) * (1 + 1e-9)


@given(seed=st.integers(0, 10**9), uneven=st.booleans())
@settings(max_examples=7, deadline=None)
def test_every_sharded_plan_is_above_the_bound_of_sharded_plans(seed: int, uneven: bool) -> None:
    problem, rng = heavy_problem(seed, uneven=uneven), Random(seed)
    states: list[State] = ["whole", "optimizer", "all"]
    stages = tuple(replace(stage, state=rng.choice(states)) for stage in random_hand(problem, seed).stages)
    try:
        plan = plan_by_hand(problem, HandPlan(stages=stages))
    except Infeasible:
        assume(False)
        return
    bound = bottleneck_bound(problem, sharded=True)
    assert bound <= problem.batch_size * bottleneck_seconds(plan) * (1 + 1e-9)
    assert bottleneck_gap_percent(plan) >= -1e-6
    assert gap_percent(plan, predict(plan)) >= -1e-6
    assert step_bound(problem, sharded=True) <= step_seconds(plan) * (1 + 1e-9)


@given(seed=st.integers(0, 10**9), name=TRAINERS)
@settings(max_examples=20, deadline=None)
def test_every_planner_is_above_the_bound(seed: int, name: str) -> None:
    problem = random_problem(seed, most_ops=8)
    plan = PLANNERS[name].plan(problem, Options())
    assert step_bound(problem) <= step_seconds(plan) * (1 + 1e-9)
    assert gap_percent(plan, predict(plan)) >= -1e-6
    assert bottleneck_gap_percent(plan) >= -1e-6


@given(
    seed=st.integers(0, 10**9),
    name=TRAINERS,
    choice=st.sampled_from([name for name in schedule_choices() if name != "dualpipe-v"]),  # it needs devices in a V
)
@settings(max_examples=30, deadline=None)
def test_no_schedule_of_a_plan_goes_below_its_least(seed: int, name: str, choice: str) -> None:
    plan = PLANNERS[name].plan(random_problem(seed, most_ops=8), Options())
    assert least_step_seconds(plan) <= step_seconds(scheduled(plan, choice, step_seconds)) * (1 + 1e-9)


def test_the_least_of_a_chain_by_hand() -> None:
    # Two stages of 1 ms forwards and 1 + 1 ms back per sample: the second waits 1 ms and works 8 x 3 ms.
    problem = towers([1], 2, 8, layer=(0.0, 1e-3), join=(0.0, 1e-3))
    stages = (
        HandStage(ops=("b0.0",), devices=(0,), micro_batch=1),
        HandStage(ops=("join",), devices=(1,), micro_batch=1),
    )
    assert least_step_seconds(plan_by_hand(problem, HandPlan(stages=stages))) == pytest.approx(25e-3)
