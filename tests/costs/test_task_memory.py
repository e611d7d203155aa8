"""Memory that tasks hold only while they run: hand-computed for a chain of three operators."""

import pytest
from problems import KIND, cluster

from graphpipe.costs import CostModel, CostTable, Curve, OpCost, TaskMemory, Temporaries
from graphpipe.graph import Edge, Graph, Op, Work

OPS = ("a", "b", "c")
SAVED = {"a": 100.0, "b": 10.0, "c": 1.0}
HELD = {"a": (4.0, 50.0), "b": (7.0, 30.0), "c": (2.0, 20.0)}
"""Forward and backward bytes per sample. The backward holds 1000 more for any number of samples."""
GRAPH = Graph(
    name="chain",
    ops=tuple(
        Op(name=op, parameters=(op,), parameter_bytes=5.0, work=Work(saved_bytes_per_sample=SAVED[op])) for op in OPS
    ),
    edges=(Edge(source="a", target="b", bytes_per_sample=3.0), Edge(source="b", target="c", bytes_per_sample=6.0)),
)


def model(*, known: bool = True, loss: float = 0.0) -> CostModel:
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
        for op in OPS
    )
    return CostModel(GRAPH, CostTable(graph_fingerprint=GRAPH.fingerprint, rows=rows), cluster(1))


def test_temporaries_are_added_to_what_later_operators_hold_at_that_time() -> None:
    # Of 2 samples. Forward: c 4; b 14 - 2; a 8 - 22. Backward: c 1000 + 40; b 1000 + 60 + 12 that came from c - 2;
    # a 1000 + 100 + 6 - 22. The first backward adds the gradients of later operators: 5 of c, 10 of b and c.
    assert TaskMemory.of(model().op_bytes, OPS, 2) == TaskMemory(forward=12, first_backward=1094, backward=1084)


def test_a_gradient_from_another_stage_is_in_a_buffer() -> None:
    assert TaskMemory.of(model().op_bytes, ("a", "b"), 2) == TaskMemory(
        forward=14, first_backward=1000 + 100 + 6 - 20 + 5, backward=1000 + 100 + 6 - 20
    )


def test_recomputed_operators_are_not_counted_as_freed() -> None:
    found = TaskMemory.of(model().op_bytes, OPS, 2, ("a", "b"))
    assert (found.forward, found.backward) == (14, 1000 + 100 + 6)


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
