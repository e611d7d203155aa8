"""The search compares DAPPLE's chains where a chain is near the best estimate."""

from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster
from graphpipe.costs.analytic import estimate
from graphpipe.graph import read_pipedream
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.search import partition_search
from graphpipe.planners.search.search import search
from graphpipe.planning.plan import plan
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import needed_bytes
from graphpipe.plans.estimates import estimated_step_seconds
from graphpipe.zoo_graphs.zoo_graph import find_zoo_graph

DATA = Path(__file__).parents[4] / "shared" / "data" / "pipedream" / "gnmt.graph.txt"
real = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")


def planned(memory_bytes: float) -> Plan:
    graph, cluster = read_pipedream(DATA), Cluster.resolve("summit:2x4")
    kinds = tuple(replace(kind, memory_bytes=memory_bytes) for kind in cluster.device_types)
    cluster = replace(cluster, device_types=kinds)
    return plan(graph, estimate(graph, cluster), cluster, batch_size=64, schedule="1f1b", stages_per_device=1)


@real
def test_the_memory_that_the_best_plan_needs_is_enough_to_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # With just this memory, the best estimate was a graph of stages, 0.8 % faster than that of a chain. So the chains
    # were left out, and the plan was 1.2 % slower, and slower than stages that recompute (0.994 in `bench memory`).
    monkeypatch.setattr("graphpipe.planning.plan.SMALL", 0)  # Random changes depend on what fits on their way.
    best = planned(1e15)
    limited = planned(max(needed_bytes(best).values()))
    assert best.prediction is not None
    assert limited.prediction is not None
    assert limited.prediction.step_seconds == pytest.approx(best.prediction.step_seconds, rel=1e-9)


def test_chains_that_memory_excludes_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    # With 0.4 of the memory, densenet on 32 devices spent half of its search on chains of 0.06 s. They did not fit,
    # and the fastest partition that fits takes 0.11 s.
    tried: list[float] = []

    def shortest_step(table: DownsetTable, *_: object) -> list[Part]:
        tried.append(table.problem.cluster.smallest_memory_bytes)
        return []

    zoo = find_zoo_graph("densenet")
    assert zoo is not None
    graph = zoo.graph

    def found(memory_bytes: float) -> Plan:
        cluster = Cluster.resolve("summit:2x4")
        kinds = tuple(replace(kind, memory_bytes=memory_bytes) for kind in cluster.device_types)
        cluster = replace(cluster, device_types=kinds)
        problem = Problem(graph, estimate(graph, cluster), cluster, 64)
        return search(problem, Options(micro_batch=8), planner="graphpipe", chains=(False, True))

    monkeypatch.setattr(partition_search, "shortest_step", shortest_step)
    unlimited = found(1e15)
    limited = found(0.4 * max(needed_bytes(unlimited).values()))
    assert estimated_step_seconds(limited) > 1.1 * estimated_step_seconds(unlimited)
    assert tried == [1e15]
