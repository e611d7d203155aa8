"""Plans for numbers of devices that are not powers of two."""

from functools import cache
from pathlib import Path

import pytest
from problems import cluster, table, towers

import graphpipe as gp
from bench.search.counts import summit
from bench.search.vision_models import vision_graph
from graphpipe.graph import Edge, Graph, Op, read_pipedream
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import PLANNERS
from graphpipe.planning.best_candidate import BestCandidate
from graphpipe.simulator import step_seconds
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

PROFILE = Path(__file__).parents[3] / "shared" / "data" / "pipedream" / "gnmt.graph.txt"


@cache
def graph_of(model: str) -> gp.Graph:
    if model in ("resnet18", "squeezenet"):
        return vision_graph(model)
    found = find_zoo_graph(model)
    assert found is not None
    return found.graph


def step(model: str, spec: str, planner: str, schedule: str) -> float:
    graph, devices = graph_of(model), gp.Cluster.preset(spec)
    plan = gp.plan(
        graph,
        gp.estimate(graph, devices),
        devices,
        batch_size=16 * len(devices.devices),
        planner=planner,
        schedule=schedule,
    )
    assert plan.prediction is not None
    return plan.prediction.step_seconds


@pytest.mark.parametrize(
    ("model", "spec"),
    [
        ("gpt", "summit:1x3"),
        pytest.param("case-study", "summit:1x6", marks=pytest.mark.slow),
        pytest.param("squeezenet", "summit:4x6", marks=pytest.mark.slow),
    ],
)
def test_the_default_planner_is_not_slower_than_a_baseline(model: str, spec: str) -> None:
    """The search once tried degrees and units of powers of two only.

    Its throughput was 0.85 to 0.994 of the best baseline's, which replicated the whole model on all devices. `python -m
    bench counts` compares many more.
    """
    baselines = [
        name
        for name, planner in PLANNERS.items()
        if planner.trains and planner.pipeline == "chain" and name != "dapple"
    ]
    for schedule in ("1f1b", "auto"):
        own = step(model, spec, "graphpipe", schedule)
        for name in baselines:
            assert own <= step(model, spec, name, schedule) * (1 + 1e-9), (name, schedule)


@pytest.mark.slow
def test_the_best_schedule_is_not_slower_than_1f1b() -> None:
    """Small changes once began only from plans that were promising for split backwards: dlrm was 7 % slower here."""
    graph, devices = graph_of("dlrm"), gp.Cluster.preset("summit:4x4")
    costs = gp.estimate(graph, devices)
    auto, plain = (gp.plan(graph, costs, devices, batch_size=1024, schedule=name) for name in ("auto", "1f1b"))
    assert auto.prediction is not None
    assert plain.prediction is not None
    assert auto.prediction.step_seconds <= plain.prediction.step_seconds * (1 + 1e-9)


def test_stages_run_on_three_devices_each() -> None:
    """The search once tried one, two and four devices for a stage, and left four of the six unused."""
    names = ("a", "b")
    graph = Graph(name="pair", ops=tuple(Op(name=name) for name in names), edges=(Edge(source="a", target="b"),))
    problem = Problem(graph, table(graph, dict.fromkeys(names, (0.0, 1.0))), cluster(6), 12)
    plan = PLANNERS["graphpipe"].plan(problem, Options(micro_batch=3))
    assert [(stage.ops, stage.degree) for stage in plan.stages] == [(("a",), 3), (("b",), 3)]


def test_plans_improve_under_a_schedule_that_the_caller_names() -> None:
    """Hill climbing once ran under `auto` only. The search finds 54.7 ms, and 51.3 after small changes."""
    problem = towers([5, 2], 4, 8, layer=(0.0, 1e-3), parameter_bytes=1e8)
    found = {
        name: PLANNERS["graphpipe"].plan(problem, Options(evaluate=step_seconds, scheduled=choose))
        for name, choose in (("searched", None), ("improved", BestCandidate(choice="1f1b", evaluate=step_seconds)))
    }
    assert found["improved"].schedule == "1f1b"
    assert step_seconds(found["improved"]) < step_seconds(found["searched"])


@pytest.mark.parametrize("schedule", ["1f1b", "auto"])
def test_a_micro_batch_that_the_caller_names_stays(schedule: str) -> None:
    """Small changes once gave stages other micro-batches than the one that the caller had asked for."""
    problem = towers([3, 1], 3, 8, layer=(2e-3, 1e-3), parameter_bytes=1e9, memory_bytes=64e9)
    plan = gp.plan(problem.graph, problem.costs, problem.cluster, batch_size=8, micro_batch=1, schedule=schedule)
    assert {stage.micro_batch for stage in plan.stages} == {1}


@pytest.mark.slow
@pytest.mark.skipif(not PROFILE.exists(), reason="../shared/data is absent")
@pytest.mark.parametrize(("devices", "schedule"), [(12, "auto"), (14, "1f1b"), (22, "auto")])
def test_gnmt_is_not_slower_than_with_piper(devices: int, schedule: str) -> None:
    """Where branches are far apart, estimates were too low, and gnmt was 4 % slower than with Piper.

    On 14 and 22 devices it was 0.1 and 1.8 % slower, while the search did not know the partitions that Piper finds.
    """
    whole = summit(devices)
    graph = read_pipedream(PROFILE)
    steps: list[float] = []
    for planner in ("graphpipe", "piper"):
        plan = gp.plan(
            graph, gp.estimate(graph, whole), whole, batch_size=32 * devices, planner=planner, schedule=schedule
        )
        assert plan.prediction is not None
        steps.append(plan.prediction.step_seconds)
    assert steps[0] <= steps[1] * (1 + 1e-9)
