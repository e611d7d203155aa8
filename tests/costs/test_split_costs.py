"""The costs of split operators are estimated where they were estimated, or shares of what was measured."""

from dataclasses import replace

import pytest
from split_layer import LAYER, TABLE, layer_graph, table_graph

from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable, Curve, OpCost, Temporaries, estimate
from graphpipe.costs.sample_load import declare_loads
from graphpipe.costs.split_costs import split_costs
from graphpipe.graph import split_ops

CLUSTER = Cluster.preset("local:2")
GRAPH = layer_graph()
AFTER = split_ops(GRAPH, ["head"])
(KIND,) = (kind.name for kind in CLUSTER.device_types)


def measured(op: str, factor: float) -> OpCost:
    """Return a row with forward 8 + 4 n, input gradient 16 + 8 n and so on, times a factor."""

    def line(times: float) -> Curve:
        return Curve(lines=((8.0 * times * factor, 4.0 * times * factor),))

    return OpCost(
        op=op,
        device_type=KIND,
        forward=line(1),
        input_gradient=line(2),
        weight_gradient=line(3),
        source="profiled",
        temporaries=Temporaries(forward=line(4), backward=line(5)),
    )


def test_estimated_costs_equal_an_estimate_of_the_split_graph() -> None:
    found = split_costs(estimate(GRAPH, CLUSTER), GRAPH, LAYER, CLUSTER)
    assert found == estimate(AFTER, CLUSTER)
    found.check_for(AFTER, {KIND})


def test_parts_have_their_share_of_measured_costs() -> None:
    rows = tuple(measured(op.name, 1.0) for op in GRAPH.ops)
    found = split_costs(CostTable(graph_fingerprint=GRAPH.fingerprint, rows=rows), GRAPH, LAYER, CLUSTER)
    found.check_for(AFTER, {KIND})
    assert found.by_op["head.linear.part0", KIND] == measured("head.linear.part0", 0.5)  # 4 of 8 columns
    assert found.by_op["head.linear.part1", KIND] == measured("head.linear.part1", 0.25)
    assert found.by_op["head.linear.part2", KIND] == replace(
        measured("head.linear.part2", 0.25),
        input_gradient=Curve(),  # it reads an input of the model
    )
    assert found.by_op["head", KIND] == estimate(AFTER, CLUSTER).by_op["head", KIND]
    assert found.by_op["end", KIND] == rows[-1]


def test_a_sum_with_other_products_keeps_the_rest_of_what_was_measured() -> None:
    ops = tuple(
        replace(op, work=replace(op.work, flops_per_sample=100.0)) if op.name == "head" else op for op in GRAPH.ops
    )
    graph = replace(GRAPH, ops=ops)
    rows = tuple(measured(op.name, 1.0) for op in graph.ops)
    found = split_costs(CostTable(graph_fingerprint=graph.fingerprint, rows=rows), graph, LAYER, CLUSTER)
    for samples in (1, 10):
        parts = [found.by_op[name, KIND].forward(samples) for name in (*LAYER.parts, "head")]
        assert parts == pytest.approx([each * (8 + 4 * samples) for each in (0.4, 0.2, 0.2, 0.2)])


def test_parts_have_the_loads_of_their_operator() -> None:
    costs = replace(estimate(GRAPH, CLUSTER), loads=declare_loads(GRAPH, {"head": {1.0: 0.5, 3.0: 0.5}}))
    (load,) = split_costs(costs, GRAPH, LAYER, CLUSTER).loads
    assert load.ops == ("head", *LAYER.parts)


def test_parts_by_rows_are_estimated_as_look_ups_of_all_indices() -> None:
    # A measured look-up does not say how much of it masks and zeros would take.
    graph = table_graph()
    rows = tuple(measured(op.name, 1.0) for op in graph.ops)
    table = CostTable(graph_fingerprint=graph.fingerprint, rows=rows)
    few, many = (TABLE.into(parts) for parts in (2, 5))
    for split in (few, many):
        found = split_costs(table, graph, split, CLUSTER)
        wanted = estimate(split_ops(graph, [f"wide:rows{len(split.parts)}"]), CLUSTER)
        assert [found.by_op[name, KIND] for name in split.parts] == [wanted.by_op[name, KIND] for name in split.parts]
        assert found.by_op["end", KIND] == rows[-1]
    forwards = [split_costs(table, graph, split, CLUSTER).by_op["wide.part0", KIND].forward(8) for split in (few, many)]
    assert forwards[0] == forwards[1], "more parts do not make a look-up shorter"
