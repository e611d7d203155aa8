"""What stays between the two halves of a backward, by hand: saved values that weight gradients read, and gradients."""

from dataclasses import replace

import pytest
from problems import KIND, cluster

from graphpipe.costs import CostModel, CostTable, Curve, OpCost, SavedBytes
from graphpipe.costs.stage_memory import BetweenHalves
from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, Work


def op(name: str, saved: float, output: float, parameters: float = 0.0) -> Op:
    names = (name,) if parameters else ()
    work = Work(saved_bytes_per_sample=saved)
    return Op(name=name, parameters=names, parameter_bytes=parameters, output_bytes_per_sample=output, work=work)


# before -> linear -> gelu -> block -> after. The block saves its output and 30 inside, the linear layer its output.
GRAPH = Graph(
    name="chain",
    ops=(op("before", 4, 4, 1), op("linear", 8, 8, 1), op("gelu", 16, 16), op("block", 62, 32, 1), op("after", 0, 2)),
    edges=(
        Edge(source="before", target="linear", bytes_per_sample=4),
        Edge(source="linear", target="gelu", bytes_per_sample=8),
        Edge(source="gelu", target="block", bytes_per_sample=16),
        Edge(source="block", target="after", bytes_per_sample=32),
    ),
)
OWN = ("linear", "gelu", "block")


def model(graph: Graph = GRAPH, share: float | None = None, **measured: SavedBytes) -> CostModel:
    rows = tuple(
        OpCost(
            op=each.name,
            device_type=KIND.name,
            forward=Curve(),
            input_gradient=Curve(),
            weight_gradient=Curve(),
            source="analytic",
            between_halves=measured.get(each.name),
        )
        for each in graph.ops
    )
    table = CostTable(graph_fingerprint=graph.fingerprint, rows=rows, kept_for_weight_gradient=share)
    return CostModel(graph, table, cluster(1))


def between(costs: CostModel, ops: tuple[str, ...] = OWN, samples: float = 1.0) -> BetweenHalves:
    return costs.activations(samples).between_halves(ops, samples)


def test_inputs_and_gradients_of_operators_with_parameters_stay() -> None:
    # linear: its gradient, 8; weights do not read its output. gelu: its output, 16. block: 30 inside, and its gradient.
    found = between(model())
    assert (found.own, found.received) == (8 + 16 + 30 + 32, 4)
    assert found.share == (86 + 4) / (8 + 16 + 62 + 4)
    assert (found.received_share, found.has_gradients) == (1.0, True)


def test_what_was_measured_stands_in_place_of_the_estimate() -> None:
    costs = model(block=SavedBytes(per_sample=100.0, per_forward=6.0))
    assert between(costs, samples=2.0).own == 8 + 16 + 100 + 6 / 2
    assert between(costs, samples=2.0).share > between(costs, samples=2.0).counted_share == 1.0


def test_received_values_that_no_weight_reads_do_not_stay() -> None:
    found = between(model(), ("gelu", "block"))
    assert (found.own, found.received, found.received_share) == (16 + 30 + 32, 0, 0)


def test_what_leads_back_to_nothing_received_waits_whole_for_the_second_half() -> None:
    # side -> mixed <- x: no gradient leaves from `side`, so all that it saves stays, and the gradient that enters it.
    graph = Graph(
        name="sides",
        ops=(op("x", 0, 4, 1), op("side", 10, 6, 1), op("relu", 6, 6), op("mixed", 5, 5, 1)),
        edges=(
            Edge(source="side", target="relu", bytes_per_sample=6),
            Edge(source="x", target="mixed", bytes_per_sample=4),
            Edge(source="relu", target="mixed", bytes_per_sample=6),
        ),
    )
    found = between(model(graph), ("side", "relu", "mixed"))
    assert found.own == (10 + 6) + 6 + 5  # mixed: the gradient of its output, which is the model's result
    assert found.received == 4


def test_a_table_that_says_a_share_is_believed() -> None:
    found = between(model(share=0.25, block=SavedBytes(per_sample=1e6)))
    assert found == BetweenHalves(own=86 / 4, received=1, received_share=0.25, share=0.25, has_gradients=False)
    body = model(share=0.0).table
    assert body.fingerprint != model().table.fingerprint


def test_measured_bytes_may_not_be_negative() -> None:
    row = replace(model().table.rows[0], between_halves=SavedBytes(per_sample=-1.0))
    with pytest.raises(InvalidInput, match="between_halves"):
        row.check()
