"""Memory that tasks hold only while they run: hand-computed for a chain of three operators."""

from dataclasses import replace

import pytest
from problems import KIND, cluster

from graphpipe.costs import CostModel, CostTable, Curve, OpCost, TaskMemory, Temporaries
from graphpipe.graph import Edge, Graph, Op, Work

OPS = ("m.a", "m.b", "c")
SAVED = {"m.a": 100.0, "m.b": 10.0, "c": 1.0}
HELD = {"before": (0.0, 0.0), "m.a": (4.0, 50.0), "m.b": (7.0, 30.0), "c": (2.0, 20.0)}
"""Forward and backward bytes per sample. The backward holds 1000 more for any number of samples."""
GRAPH = Graph(
    name="chain",
    ops=tuple(
        Op(name=op, parameters=(op,), parameter_bytes=5.0, work=Work(saved_bytes_per_sample=SAVED[op])) for op in OPS
    ),
    edges=(
        Edge(source="m.a", target="m.b", bytes_per_sample=3.0),
        Edge(source="m.b", target="c", bytes_per_sample=6.0),
    ),
)
RECEIVING = replace(
    GRAPH,
    ops=(Op(name="before", parameters=("before",), parameter_bytes=5.0), *GRAPH.ops),
    edges=(Edge(source="before", target="m.a", bytes_per_sample=0.0), *GRAPH.edges),
)
"""The same behind another stage, to which gradients go back."""


def model(*, known: bool = True, loss: float = 0.0, graph: Graph = GRAPH) -> CostModel:
    def held(op: str) -> Temporaries:
        forward, backward = HELD[op]
        return Temporaries(
            forward=Curve(lines=((0.0, forward),)),
            backward=Curve(lines=((1000.0, backward),)),
            loss_bytes_per_sample=loss if op == "c" else 0.0,
        )

    rows = tuple(
        OpCost(
            op=op,
            device_type=KIND.name,
            forward=Curve(),
            input_gradient=Curve(),
            weight_gradient=Curve(),
            source="profiled",
            temporaries=held(op) if known else None,
        )
        for op in (op.name for op in graph.ops)
    )
    return CostModel(graph, CostTable(graph_fingerprint=graph.fingerprint, rows=rows), cluster(1))


def test_temporaries_are_added_to_what_later_operators_hold_at_that_time() -> None:
    # Of 2 samples. Forward: c 4; b 14 - 2; a 8 - 22. Backward: c 1000 + 40; b 1000 + 60 + 12 that came from c - 2;
    # a 1000 + 100 + 6 - 22. The first backward adds the gradients of later operators: 5 of c, 10 of b and c.
    # A half holds as much as the backward here. The first keeps all that is saved, and gradients: 3 of a, 6 of b.
    # Input half: c 1040; b 1072; a 1106 + 12 of b. Weight half: c 1040; b 1060 - 2; a 1100 - 2 - 32. The first one adds
    # 5 and 10.
    assert TaskMemory.of(model(graph=RECEIVING).op_bytes, OPS, 2) == TaskMemory(
        forward=12, first_backward=1094, backward=1084, input_half=1118, first_weight_half=1076, weight_half=1066
    )


def test_a_gradient_from_another_stage_is_in_a_buffer() -> None:
    assert TaskMemory.of(model(graph=RECEIVING).op_bytes, ("m.a", "m.b"), 2) == TaskMemory(
        forward=14,
        first_backward=1000 + 100 + 6 - 20 + 5,
        backward=1000 + 100 + 6 - 20,
        input_half=1000 + 100 + 6 + 12,
        first_weight_half=1000 + 100 - 32 + 5,
        weight_half=1000 + 100 - 32,
    )


def test_what_leads_to_no_received_value_runs_in_the_second_half() -> None:
    """The text tower of a last stage counted as run in the first half: 1 of 3.8 MB too much."""
    assert TaskMemory.of(model().op_bytes, OPS, 2) == TaskMemory(
        forward=12, first_backward=1094, backward=1084, input_half=0, first_weight_half=1094, weight_half=1084
    )


def test_halves_count_as_backwards_where_a_table_says_the_share_that_stays() -> None:
    costs = model()
    share = replace(costs, table=replace(costs.table, kept_for_weight_gradient=0.5))
    assert TaskMemory.of(share.op_bytes, OPS, 2) == TaskMemory(
        forward=12, first_backward=1094, backward=1084, input_half=1084, first_weight_half=1094, weight_half=1084
    )


def test_measured_halves_stand_in_place_of_the_backward() -> None:
    held = Temporaries(
        forward=Curve(), backward=Curve(lines=((900.0, 0.0),)), input_half=Curve(lines=((7.0, 0.0),)), weight_half=None
    )
    costs = model(graph=RECEIVING)
    rows = tuple(replace(row, temporaries=held) for row in costs.table.rows)
    found = TaskMemory.of(replace(costs, table=replace(costs.table, rows=rows)).op_bytes, OPS, 2)
    assert found.of_task("I", first=False) == 7 + 6 + 12
    assert found.of_task("W", first=False) == 900


def test_a_backward_holds_a_region_only_once_it_is_computed_again() -> None:
    # Nothing counted as freed where single operators are recomputed. So mixed plans were predicted 20 % too large.
    # Of 2 samples. The largest region, a with 200, counts as held all the time. What is kept: 6 of a, which b reads; 12
    # of b, which c reads; 2 of c. Backward: c 1040 - 200; b 1072 + 20 - 2 - 200; a 1106 + 200 - 14 - 200.
    found = TaskMemory.of(model().op_bytes, OPS, 2, ("m.a", "m.b"))
    assert (found.first_backward, found.backward) == (1092 + 10, 1092)
    # Forward: a drops 194 of 200, and 14 are not there yet; b drops 8 of 20, and 2 are not there yet.
    assert found.forward == 8 + 194 - 14


def test_operators_of_one_region_free_what_they_save_one_after_the_other() -> None:
    # Both count as held all the time, with 220. Of b, 12 are kept for c. Backward: c 1040 - 220; b 1072 + 220 - 2 -
    # 220; a 1106 + 200 - 14 - 220. Forward: b 14 + 8 - 2, a 8 + 200 - 14.
    found = TaskMemory.of(model().op_bytes, OPS, 2, ("m",))
    assert (found.forward, found.first_backward, found.backward) == (194, 1072 + 10, 1072)


def test_what_was_offloaded_is_there_again_for_its_backward() -> None:
    assert TaskMemory.of(model().op_bytes, OPS, 2, offload=("m",)) == TaskMemory.of(model().op_bytes, OPS, 2)


def test_planners_count_the_operator_that_holds_most_and_all_of_its_gradient() -> None:
    assert model().op_bytes.temporary(2).tolist() == [1000 + 100 + 6, 1000 + 60 + 12, 1000 + 40]


def test_the_loss_keeps_as_an_operator_does() -> None:
    assert model(loss=8.0).activation_bytes.saved(OPS) == model().activation_bytes.saved(OPS) + 8
    assert model(loss=8.0).activation_bytes.recomputed(("c",), "full") == 1 + 8


@pytest.mark.parametrize("samples", [1, 7])
def test_a_table_without_temporaries_gives_zero(samples: float) -> None:
    unknown = model(known=False)
    assert not unknown.op_bytes.has_temporaries
    assert TaskMemory.of(unknown.op_bytes, OPS, samples) == TaskMemory(0, 0, 0)
    assert unknown.op_bytes.temporary(samples).tolist() == [0, 0, 0]
