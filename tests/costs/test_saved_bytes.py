"""Saved bytes that were measured, such as those of compiled layers, stand in place of those of the graph."""

from dataclasses import replace

import pytest
import torch
from builders import Part, make_plan
from torch import nn

import graphpipe as gp
from graphpipe.costs import CostTable, SavedBytes
from graphpipe.costs.activation_bytes import ActivationBytes
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body, to_body
from graphpipe.graph import Graph


def halved(costs: CostTable, graph: Graph) -> CostTable:
    """Return the costs of layers that save half as much, and some bytes for each forward."""
    return replace(
        costs,
        rows=tuple(
            replace(row, saved=SavedBytes(per_sample=graph[row.op].work.saved_bytes_per_sample / 2, per_forward=8.0))
            for row in costs.rows
        ),
    )


def test_measured_bytes_stand_in_place_of_counted_ones() -> None:
    plan = make_plan([Part()])
    costs = replace(
        plan.costs,
        rows=tuple(replace(row, saved=SavedBytes(per_sample=3.0, per_forward=8.0)) for row in plan.costs.rows),
    )
    found = replace(plan, costs=costs)
    assert ActivationBytes(found.cost_model.op_bytes, 2.0).saved(("s0",)) == 3.0 + 8.0 / 2


def test_a_plan_uses_the_memory_that_compiled_layers_free() -> None:
    """The verifier, which counts by itself, agrees."""
    model, x = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(64, 64), nn.GELU()))), torch.randn(64, 64)
    graph, cluster = gp.capture(model, x), gp.Cluster.preset("local:2")
    costs = gp.estimate(graph, cluster)
    kept = sum(op.work.saved_bytes_per_sample for op in graph.ops) / 2
    state = sum(op.parameter_bytes for op in graph.ops) * costs.state_bytes_per_parameter_byte / 2
    room = state + 64 * kept * 0.75  # for a stage of half the operators with all samples in flight
    tight = replace(cluster, device_types=tuple(replace(kind, memory_bytes=room) for kind in cluster.device_types))

    def planned(table: CostTable) -> gp.Plan:
        order = graph.order
        stages = [
            gp.HandStage(ops=tuple(ops), devices=(at,), micro_batch=32)
            for at, ops in enumerate((order[: len(order) // 2], order[len(order) // 2 :]))
        ]
        return gp.hand_plan(graph, table, tight, batch_size=64, stages=stages, schedule="gpipe")

    with pytest.raises(gp.Infeasible, match="short"):
        planned(costs)
    fitting = planned(halved(costs, graph))
    assert max(gp.simulate(fitting).peak_bytes) <= room


def test_tables_without_them_have_the_body_that_they_had() -> None:
    plan = make_plan([Part()])
    assert "saved" not in to_body(plan.costs)["rows"][0]
    table = halved(plan.costs, plan.graph)
    assert from_body(CostTable, to_body(table), "costs") == table
    with pytest.raises(InvalidInput, match=r"cost of op s0 on .*, saved: "):
        replace(table, rows=(replace(table.rows[0], saved=SavedBytes(per_sample=-1.0)),))
