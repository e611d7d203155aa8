"""Submodules that are recomputed as one, in graphs of single operators."""

from dataclasses import replace
from itertools import pairwise

import pytest

from graphpipe.graph import Edge, Graph, Op, Work
from graphpipe.planners.relief.relief import Relief
from graphpipe.planners.relief.submodules import fitted_submodules
from graphpipe.plans import Plan, Stage
from tests.planners.relief.test_relief import one_stage

PARTS = ("norm", "up", "act", "down")
"""Of each block. Each saves its input of 1, 1, 4 and 4 bytes per sample."""


def blocks(count: int, depth: int = 1) -> Plan:
    """Return a plan of one stage: a chain of blocks of four operators, whose names have so many dots."""
    plan = one_stage([1.0] * 4 * count, [1.0, 1.0, 4.0, 4.0] * count, [1.0, 4.0, 4.0, 1.0] * count, [])
    prefix = "model." * (depth - 1)
    names = [f"{prefix}blocks{number}.{part}" for number in range(count) for part in PARTS]
    named = dict(zip(plan.graph.order, names, strict=True))
    graph = Graph(
        name="blocks",
        ops=tuple(replace(op, name=named[op.name]) for op in plan.graph.ops),
        edges=tuple(replace(edge, source=named[edge.source], target=named[edge.target]) for edge in plan.graph.edges),
    )
    rows = tuple(replace(row, op=named[row.op]) for row in plan.costs.rows)
    costs = replace(plan.costs, rows=rows, graph_fingerprint=graph.fingerprint)
    stages = tuple(replace(stage, ops=tuple(names)) for stage in plan.stages)
    return replace(plan, graph=graph, costs=costs, stages=stages)


def needed(plan: Plan, stage: Stage) -> float:
    model = plan.cost_model
    return model.stage_memory(stage.ops, stage.micro_batch, stage.recompute).total(stage.in_flight)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("recomputed", [1, 2, 3])
def test_blocks_of_single_operators_are_recomputed_together(depth: int, recomputed: int) -> None:
    """Recomputed alone, operators kept each other's outputs: under 45 MiB nothing fitted, and blocks did."""
    plan = blocks(3, depth)
    (stage,) = plan.stages
    names = tuple(f"{'model.' * (depth - 1)}blocks{number}" for number in range(3))
    capacity = needed(plan, replace(stage, recompute=names[:recomputed]))
    fitted = Relief(plan=plan, stage=stage, window_seconds=0.0, offloads=False).fitted(capacity)
    assert fitted is not None
    assert needed(plan, fitted) <= capacity
    assert fitted.recompute != "none"
    # Not more is computed again than the blocks that the memory was made for.
    again = plan.cost_model.task_seconds(fitted.ops, 0, stage.micro_batch, fitted.recompute).backward
    blocks_again = plan.cost_model.task_seconds(stage.ops, 0, stage.micro_batch, names[:recomputed]).backward
    assert again <= blocks_again


def test_as_few_submodules_as_fit_are_chosen() -> None:
    plan = blocks(4)
    (stage,) = plan.stages
    found = [*fitted_submodules(plan, stage, lambda names: len(names) >= 2, lambda names: float(len(names)))]
    assert [len(names) for names in found] == [2]
    assert not [*fitted_submodules(plan, stage, lambda names: False, lambda names: 1.0)]


def test_submodules_that_need_each_other_are_not_regions() -> None:
    # a.0 -> b.0 -> a.1 -> b.1: neither a nor b can be computed at once.
    names = ["a.0", "b.0", "a.1", "b.1"]
    graph = Graph(
        name="mixed",
        ops=tuple(Op(name=name, work=Work(saved_bytes_per_sample=1.0)) for name in names),
        edges=tuple(Edge(source=one, target=other) for one, other in pairwise(names)),
    )
    plan = blocks(1)
    rows = tuple(replace(row, op=name) for row, name in zip(plan.costs.rows, names, strict=True))
    costs = replace(plan.costs, rows=rows, graph_fingerprint=graph.fingerprint)
    stage = replace(plan.stages[0], ops=tuple(names))
    mixed = replace(plan, graph=graph, costs=costs, stages=(stage,))
    assert not [*fitted_submodules(mixed, stage, lambda names: True, lambda names: 1.0)]
