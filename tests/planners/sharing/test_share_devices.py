"""Plans in which devices host several stages: never slower than without, within memory, and near the best of all."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import cluster, table
from split_layer import LAYER, layer_graph

import graphpipe as gp
from bench.case import summit
from bench.search.brute_force import partitions
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Edge, Graph, Op, with_split
from graphpipe.planners.lower_bound.lower_bound import gap_percent, step_bound
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, assemble_in_order
from graphpipe.planners.problem.whole_batch_tail import most_stages_per_device
from graphpipe.planners.raise_in_flight import with_slack
from graphpipe.planners.sharing.folds import folded_plans
from graphpipe.planning.best_candidate import BestCandidate
from graphpipe.planning.choose_schedule import under
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import predict, step_seconds
from graphpipe.simulator.simulate import simulate
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph


def random_problem(seed: int, ops: int, devices: int, batch_size: int = 8, memory_bytes: float = 16e9) -> Problem:
    rng = random.Random(seed)
    names = [f"o{number}" for number in range(ops)]
    edges = [
        (s, t) for t in range(1, ops) for s in range(t) if rng.random() < 0.4 or (s == t - 1 and rng.random() < 0.6)
    ]
    graph = Graph(
        name="random",
        ops=tuple(
            Op(
                name=name,
                parameters=(f"{name}.weight",),
                parameter_bytes=rng.choice([0.0, 1e7, 1e8]),
                output_bytes_per_sample=1e6,
            )
            for name in names
        ),
        edges=tuple(Edge(source=names[s], target=names[t], bytes_per_sample=1e6) for s, t in edges),
    )
    costs = table(graph, {name: (0.0, rng.choice([1e-3, 2e-3, 5e-3])) for name in names})
    return Problem(graph, costs, cluster(devices, memory_bytes=memory_bytes), batch_size)


def planned(problem: Problem, most: int, schedule: str = "1f1b") -> Plan:
    return gp.plan(
        problem.graph,
        problem.costs,
        problem.cluster,
        batch_size=problem.batch_size,
        schedule=schedule,
        stages_per_device=most,
    )


def least_seconds(problem: Problem) -> float:
    """Return the shortest step over all partitions, teams of one stage each or shared, and one micro-batch size."""
    devices = range(len(problem.cluster.devices))
    teams = [tuple(d for d in devices if chosen >> d & 1) for chosen in range(1, 2 ** len(devices))]
    found = float("inf")
    for groups in partitions(problem.graph.order):
        shape = [Part(tuple(ops), 1, 1) for ops in groups]
        if assemble_in_order(problem, shape, None, planner="all") is None:
            continue
        for size, hosts in product((1, 2, 4, 8), product(teams, repeat=len(groups))):
            if all(size % len(team) == 0 for team in hosts):
                parts = [Part(tuple(ops), len(team), size) for ops, team in zip(groups, hosts, strict=True)]
                plan = assemble_in_order(problem, parts, hosts, planner="all")
                assert plan is not None
                name = "interleaved" if plan.shares_devices else "1f1b"
                found = min(found, step_seconds(under(find_scheduler(name), plan)))
    return found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_plans_are_near_the_best_of_all(seed: int) -> None:
    """Over 20 such problems the mean gap was 0.01 %, the worst 0.3 %. Without sharing it was 1.7 % and 5.6 %."""
    problem = random_problem(seed, ops=4, devices=2)
    best, found = least_seconds(problem), step_seconds(planned(problem, 4))
    assert best * 0.999 <= found <= 1.005 * best
    assert step_bound(problem) <= best


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_plans_of_a_split_layer_are_above_the_bound_of_its_parts(data: st.DataObject) -> None:
    """So `gap_percent` is never negative, whichever operators are split and whatever the devices host."""
    whole, devices = layer_graph(), cluster(3)
    graph = with_split(whole, LAYER)
    problem = Problem(graph, gp.estimate(graph, devices), devices, 12)
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(graph.ops), max_size=len(graph.ops)))
    size = data.draw(st.sampled_from([6, 12]))
    groups = [tuple(op.name for op, at in zip(graph.ops, numbers, strict=True) if at == number) for number in range(4)]
    teams = st.sets(st.integers(0, 2), min_size=1).map(lambda team: tuple(sorted(team)))
    hosts = [data.draw(teams) for _ in groups]
    placed = [(Part(ops, len(team), size), team) for ops, team in zip(groups, hosts, strict=True) if ops]
    parts, teams_of = [part for part, _ in placed], [team for _, team in placed]
    plan = assemble_in_order(problem, parts, teams_of, planner="all")
    assume(plan is not None)
    assert plan is not None
    plan = under(find_scheduler("interleaved" if plan.shares_devices else "1f1b"), plan)
    assert gap_percent(plan, predict(plan)) >= -1e-6
    assert step_bound(problem) <= step_seconds(plan) * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "auto", "interleaved", "zb-h1"])
@pytest.mark.parametrize("seed", range(3))
def test_sharing_is_never_slower(seed: int, schedule: str) -> None:
    problem = random_problem(seed, ops=8, devices=4, batch_size=16)
    alone, shared = planned(problem, 1, schedule), planned(problem, 4, schedule)
    assert step_seconds(shared) <= step_seconds(alone) * (1 + 1e-12)
    assert step_seconds(shared) == simulate(shared).step_seconds
    assert most_stages_per_device(alone) == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_device_hosts_more_stages_than_asked(most: int) -> None:
    plan = planned(random_problem(5, ops=8, devices=2, batch_size=16), most)
    assert max(Counter(device for stage in plan.stages for device in stage.devices).values()) <= most


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_more_stages_on_a_device_are_never_slower(seed: int) -> None:
    """For mmt on 16 devices under `auto`, the plan with at most 4 stages took 706 ms, that with at most 2 only 692."""
    problem = random_problem(seed, ops=7, devices=3, batch_size=12)
    steps = [step_seconds(planned(problem, most, "auto")) for most in (1, 2, 3, 4, 5)]
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(steps))


def test_memory_of_all_stages_of_a_device_counts() -> None:
    problem = random_problem(1, ops=8, devices=4, batch_size=16)
    needed = max(planned(problem, 4).prediction.peak_bytes)  # pyright: ignore[reportOptionalMemberAccess]
    tight = replace(problem, cluster=cluster(4, memory_bytes=0.95 * needed))
    try:
        plan = planned(tight, 4)
    except Infeasible:
        return
    assert memory_shortfall(plan) <= 0


@pytest.mark.slow
def test_gpt_shares_under_1f1b() -> None:
    """The target is 1.05 times as fast: gradients are summed while other stages compute."""
    zoo_graph = find_zoo_graph("gpt")
    assert zoo_graph is not None
    devices = summit(32)
    problem = Problem(zoo_graph.graph, gp.estimate(zoo_graph.graph, devices), devices, 512)
    assert step_seconds(planned(problem, 1)) >= 1.05 * step_seconds(planned(problem, 4))


def test_slack_of_stages_that_share_a_device_never_makes_devices_wait_forever() -> None:
    """With slack, three stages of a device once began so many micro-batches of unequal sizes that none could go on."""
    names = [f"o{number}" for number in range(4)]
    graph = Graph(
        name="chain",
        ops=tuple(Op(name=name, output_bytes_per_sample=1e6) for name in names),
        edges=tuple(Edge(source=s, target=t, bytes_per_sample=1e6) for s, t in pairwise(names)),
    )
    problem = Problem(graph, table(graph, dict.fromkeys(names, (0.0, 1e-3))), cluster(2), 16)
    parts = [Part((name,), 1, size) for name, size in zip(names, (1, 4, 2, 2), strict=True)]
    plan = assemble(problem, parts, planner="test", devices=[(0,), (1,), (1,), (1,)])
    assert step_seconds(plan) < inf
    assert step_seconds(with_slack(plan)) < inf
    best = BestCandidate(choice="auto", evaluate=step_seconds)([plan])
    assert step_seconds(best) <= step_seconds(plan)


def test_few_operators_share_many_devices() -> None:
    """Above 128 devices nothing was shared, though gpt is 1.09 times as fast with it on 256, found in 2 seconds."""
    problem = random_problem(0, ops=3, devices=160, batch_size=160)
    assert most_stages_per_device(planned(problem, 4)) == 2


def test_folds_go_round_and_turn() -> None:
    problem = random_problem(0, ops=8, devices=2)
    plans = folded_plans(problem, Options(stages_per_device=2), 2, planner="test", most=100)
    hosts = {tuple(stage.devices for stage in plan.stages) for plan in plans}
    assert ((0,), (1,), (0,), (1,)) in hosts
    assert ((0,), (1,), (1,), (0,)) in hosts
    assert ((0, 1), (0, 1)) in hosts
    assert all(most_stages_per_device(plan) == 2 for plan in plans)


def test_devices_that_share_cores_host_one_stage_by_default() -> None:
    zoo_graph = find_zoo_graph("gpt-small")
    assert zoo_graph is not None
    local = gp.Cluster.preset("local:2")
    plan = gp.plan(zoo_graph.graph, gp.estimate(zoo_graph.graph, local), local, batch_size=16)
    assert most_stages_per_device(plan) == 1


def test_the_number_of_stages_is_checked() -> None:
    with pytest.raises(InvalidInput, match="stages_per_device: is 0, must be at least 1"):
        planned(random_problem(0, ops=4, devices=2), 0)
