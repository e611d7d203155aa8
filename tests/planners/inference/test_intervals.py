"""The bytes of intervals against those of the stages that they become, and GraphPipe against the published planner."""

from itertools import combinations

import pytest

import graphpipe as gp
from graphpipe.cluster import Cluster
from graphpipe.costs import CostModel
from graphpipe.costs.analytic import estimate
from graphpipe.graph import Edge, EdgeValue, Graph, Op
from graphpipe.planners.inference.intervals import IntervalCosts
from graphpipe.plans.estimates import period_seconds
from graphpipe.zoo_graphs import find_zoo_graph

VALUES = {"x": 1.0, "y": 2.0}


def two_values() -> Graph:
    """Return an operator that sends two values: `b` and `d` read one, `c` the other, `d` also what `b` and `c` send."""

    def edge(target: str, *names: str) -> Edge:
        values = tuple(EdgeValue(name=name, bytes_per_sample=VALUES[name]) for name in names)
        return Edge(source="a", target=target, bytes_per_sample=sum(VALUES[n] for n in names), values=values)

    plain = [Edge(source=name, target="d", bytes_per_sample=4.0) for name in ("b", "c")]
    ops = tuple(Op(name=name, output_bytes_per_sample=3.0 if name == "a" else 4.0) for name in "abcd")
    return Graph(name="two", ops=ops, edges=(edge("b", "x"), edge("c", "y"), edge("d", "x"), *plain))


def test_values_are_counted_once_each_and_not_by_operator() -> None:
    """What stage (b, c, d) receives was counted as 2 bytes, the larger of the values of `a`, instead of 3."""
    graph = two_values()
    cluster = Cluster.preset("local:2")
    model = CostModel.of(graph, estimate(graph, cluster), cluster, trains=False)
    found = IntervalCosts.of(model, graph.order)
    for first, stop in combinations(range(len(graph.ops) + 1), 2):
        ops = graph.order[first:stop]
        stage = model.stage_memory(ops, 1)
        assert found.crossing[first, stop] == stage.received + stage.saved
        assert found.needed_bytes(1, 3)[first, stop] == pytest.approx(stage.resident(3) + stage.transient)
    assert found.cuts.tolist() == [0, 3, 7, 9, 0]  # after b: x, y and b's 4; after c: x, b's and c's


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize(
    ("model", "cluster"), [("two-tower-small", "local:3"), ("vision-language-small", "summit:1x2")]
)
def test_graphpipe_is_never_worse_on_two_branches(model: str, cluster: str, objective: str) -> None:
    found = find_zoo_graph(model)
    assert found is not None
    devices = Cluster.preset(cluster)
    costs = estimate(found.graph, devices)

    def seconds(planner: str) -> float:
        plan = gp.plan(
            found.graph,
            costs,
            devices,
            batch_size=16,
            planner=planner,
            inference=True,
            objective=objective,  # pyright: ignore[reportArgumentType]
        )
        assert plan.prediction is not None
        return plan.prediction.step_seconds if objective == "latency" else period_seconds(plan)

    assert seconds("graphpipe") <= seconds("edgepipe") * (1 + 1e-9)
