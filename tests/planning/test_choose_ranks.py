"""How many devices share a replica: chosen stage by stage, and never slower than one."""

from dataclasses import replace
from typing import Any

import pytest
from shared_replicas import chain, cluster, layer, problem, shards, table

from graphpipe.cluster import Cluster, Link
from graphpipe.costs import CostTable, estimate
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Exchanges, Graph, Op, ShardFigures, Shared, Work
from graphpipe.graph.op_shards import OpShards
from graphpipe.planning.choose_ranks import shareable
from graphpipe.planning.plan import plan as find_plan
from graphpipe.planning.settings import PlanSettings
from graphpipe.plans import Plan
from graphpipe.plans.estimates import period_seconds
from graphpipe.plans.verify import verify
from graphpipe.simulator.predicted_step import step_seconds

PARAMETERS, FLOPS = 200e6, 200e9
"""Bytes of the weights of a layer, and FLOPs of a sample."""


def layers(count: int, *, most: int = 8, layout: bool = True) -> Graph:
    """Return layers like those of a transformer, of which devices share all but a hundredth."""
    shared = OpShards(
        most=most,
        submodules=(),
        parameters=(),
        parameter_bytes=0.99 * PARAMETERS,
        figures=ShardFigures(
            flops_per_sample=0.99 * FLOPS,
            traffic_bytes_per_sample=4e7,
            saved_bytes_per_sample=4e7,
            forward=Exchanges(reductions=2, bytes_per_sample=2 * 8e6),
            backward=Exchanges(reductions=2, bytes_per_sample=2 * 8e6),
        ),
    )
    work = Work(flops_per_sample=FLOPS, traffic_bytes_per_sample=5e7, saved_bytes_per_sample=5e7, kernels=12)
    ops = (
        Op(name=f"layer.{at}", parameter_bytes=PARAMETERS, work=work, shards=shared if layout else None)
        for at in range(count)
    )
    return chain(*ops, sent=8e6)


def planned(graph: Graph, machines: Cluster, batch_size: int, costs: CostTable | None = None, **asked: Any) -> Plan:
    return find_plan(graph, costs or estimate(graph, machines), machines, batch_size=batch_size, **asked)


def seconds(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.step_seconds


def test_fewer_samples_than_devices_pay() -> None:
    graph, machines = layers(8), Cluster.preset("dgx-a100:1x8")
    alone = planned(graph, machines, 4, schedule="1f1b")
    shared = planned(graph, machines, 4, schedule="1f1b", tensor="auto")
    assert any(stage.tensor > 1 for stage in shared.stages)
    assert seconds(shared) < 0.7 * seconds(alone)
    assert shared.graph is graph
    assert shared.cluster == machines


def test_slow_links_decline() -> None:
    graph, machines = layers(4), Cluster.preset("dgx-a100:1x4")
    slow = Link(latency_seconds=1e-3, bandwidth_bytes_per_second=1e9)
    machines = replace(machines, intra_node=slow)
    alone = planned(graph, machines, 8, schedule="1f1b")
    shared = planned(graph, machines, 8, schedule="1f1b", tensor="auto")
    assert shared.stages == alone.stages


def test_a_layer_that_exceeds_a_device_is_shared() -> None:
    graph = layers(2)
    kind = replace(Cluster.preset("dgx-a100:1x4").device_types[0], memory_bytes=2.5 * PARAMETERS, context_bytes=0.0)
    kind = replace(kind, workspace_bytes=0.0, communicator_bytes=0.0, reserved_share=0.0)
    machines = replace(Cluster.preset("dgx-a100:1x4"), device_types=(kind,))
    with pytest.raises(Infeasible):
        planned(graph, machines, 4, schedule="1f1b")
    shared = planned(graph, machines, 4, schedule="1f1b", tensor="auto")
    assert min(stage.tensor for stage in shared.stages) > 1
    with pytest.raises(Infeasible):
        planned(layers(2, layout=False), machines, 4, schedule="1f1b", tensor="auto")


def test_a_stage_without_a_layout_keeps_a_replica_per_device() -> None:
    work = Work(flops_per_sample=40 * FLOPS, kernels=4)
    whole = Op(name="tower", parameter_bytes=1e6, work=work)
    graph = chain(whole, *layers(4).ops, sent=8e6)
    shared = planned(graph, Cluster.preset("dgx-a100:1x8"), 8, schedule="1f1b", tensor="auto")
    assert shared.stages[0].tensor == 1


@pytest.mark.parametrize("batch_size", [1, 2, 6])
def test_auto_is_never_slower_than_any_number(batch_size: int):
    graph, machines = chain(layers(1).ops[0], *layers(3, layout=False).ops[1:], sent=8e6), Cluster.preset("summit:2x2")
    numbers = [seconds(planned(graph, machines, batch_size, schedule="1f1b", tensor=number)) for number in (1, 2)]
    chosen = planned(graph, machines, batch_size, schedule="1f1b", tensor="auto")
    assert seconds(chosen) <= min(numbers) * (1 + 1e-9)


def test_a_number_is_that_of_every_stage() -> None:
    plan = planned(layers(4), Cluster.preset("dgx-a100:1x8"), 8, schedule="1f1b", tensor=4)
    assert {stage.tensor for stage in plan.stages} == {4}
    verify(plan)


def test_degrees_that_a_layout_allows() -> None:
    graph = chain(layer("a", shards(most=4)), layer("b", None), layer("c", shards(most=8)))
    assert shareable(graph, cluster(16, per_node=8)) == (2, 4, 8)
    assert shareable(chain(layer("a", shards(most=6))), cluster(16, per_node=8)) == (2,)
    assert shareable(graph, cluster(16, per_node=2)) == (2,)
    assert shareable(chain(layer("b", None)), cluster(8)) == ()


def test_an_operator_that_so_many_cannot_share_runs_whole() -> None:
    tied = layer("c", shards(), weight="b.weight")
    graph = chain(layer("a", shards()), layer("b", shards(most=3)), tied, layer("d", shards(most=6)))
    graph = replace(graph, shared=(Shared(name="b.weight", bytes=80),))
    found = problem(graph, 4)
    plan = planned(graph, found.cluster, 4, found.costs, tensor=4)
    assert [op.name for op in plan.graph.ops if op.shards] == ["a"], "c divides the weight of b, which stays whole"
    assert plan.graph.fingerprint == graph.fingerprint
    verify(plan)
    plan = planned(graph, found.cluster, 4, found.costs, tensor=2)
    assert [op.name for op in plan.graph.ops if op.shards] == ["a", "d"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tensor": 0}, "tensor: is 0, must be at least 1"),
        ({"tensor": "all"}, "tensor: is 'all', must be a number or 'auto'"),
        ({"tensor": 16}, "tensor: is 16, but no node of 'test' has 16 devices of one type"),
        ({"tensor": 3}, "tensor: is 3, but operators can be shared by 8 devices or divisors of these"),
        ({"tensor": 2, "planner": "pipedream"}, "tensor: is 2, but planner 'pipedream' does not follow it"),
    ],
)
def test_what_cannot_be_followed_is_refused(asked: dict[str, object], message: str):
    found = problem(chain(layer("a", shards())), 4)
    with pytest.raises(InvalidInput) as caught:
        planned(found.graph, found.cluster, 4, found.costs, **asked)
    assert message in str(caught.value)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_replicas_are_shared_in_inference_where_that_pays(objective: str):
    """A forward takes 1 + 100 n seconds, of which 80 n can be divided. Sums between two devices take 12 + 10 n."""
    graph = chain(layer("a", shards()))
    near, costs = problem(graph, 4).cluster, table(graph, slope=100)
    asked: dict[str, Any] = {"inference": True, "objective": objective}
    plans = {tensor: planned(graph, near, 4, costs, tensor=tensor, **asked) for tensor in (1, 2, "auto")}
    assert {stage.tensor for stage in plans[2].stages} == {2}
    seconds = {tensor: evaluated(plan, objective) for tensor, plan in plans.items()}
    assert seconds["auto"] <= min(seconds[1], seconds[2])
    for plan in plans.values():
        assert not plan.trains
        verify(plan)


@pytest.mark.parametrize("weights", ["stash", "double-buffer"])
def test_replicas_are_shared_without_a_flush_where_that_pays(weights: str):
    graph = chain(layer("a", shards()), layer("b", shards()))
    near, costs = problem(graph, 4).cluster, table(graph, slope=100)
    plans = {tensor: planned(graph, near, 4, costs, tensor=tensor, weights=weights) for tensor in (1, 2, "auto")}
    assert {stage.tensor for stage in plans[2].stages} == {2}
    assert step_seconds(plans["auto"]) <= min(step_seconds(plans[1]), step_seconds(plans[2]))
    for plan in plans.values():
        assert plan.weights == weights
        verify(plan)


def evaluated(plan: Plan, objective: str) -> float:
    return step_seconds(plan) if objective == "latency" else period_seconds(plan)


def test_a_number_needs_a_layout() -> None:
    found = problem(chain(layer("b", None)), 4)
    with pytest.raises(InvalidInput, match="no operator of 'chain' has a layout"):
        planned(found.graph, found.cluster, 4, found.costs, tensor=2)


def test_one_is_what_plans_were() -> None:
    assert PlanSettings().tensor == 1
    found = problem(chain(layer("a", shards()), layer("b", None)), 4)
    plan = planned(found.graph, found.cluster, 4, found.costs)
    plain = replace(found.graph, ops=tuple(replace(op, shards=None) for op in found.graph.ops))
    assert planned(plain, found.cluster, 4, found.costs).fingerprint == plan.fingerprint
