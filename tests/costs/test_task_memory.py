"""What tasks hold only while they run, of a chain of three operators, by hand."""

import pytest
from problems import KIND, cluster

from graphpipe.costs import CostModel, CostTable, Curve, OpCost, TaskBytes, Temporaries, task_bytes
from graphpipe.graph import Edge, Graph, Op, Work

OPS = ("a", "b", "c")
SAVED = {"a": 100.0, "b": 10.0, "c": 1.0}
HELD = {"a": (4.0, 50.0), "b": (7.0, 30.0), "c": (2.0, 20.0)}
"""Forward and backward bytes per sample; the backward holds 1000 more, whatever the samples."""
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


def test_an_operator_comes_on_top_of_what_those_that_follow_have_not_yet_or_no_more() -> None:
    # Of 2 samples. Forward: c 4; b 14 - 2; a 8 - 22. Backward: c 1000 + 40; b 1000 + 60 + 12 that came from c - 2;
    # a 1000 + 100 + 6 - 22. In the first one, with the gradients of those that follow: 5 of c, 10 of b and c.
    assert task_bytes(model(), OPS, 2) == TaskBytes(forward=12, first_backward=1094, backward=1084)


def test_a_gradient_from_another_stage_is_in_a_buffer() -> None:
    assert task_bytes(model(), ("a", "b"), 2) == TaskBytes(
        forward=14, first_backward=1000 + 100 + 6 - 20 + 5, backward=1000 + 100 + 6 - 20
    )


def test_pieces_that_are_computed_again_are_not_counted_as_freed() -> None:
    found = task_bytes(model(), OPS, 2, ("a", "b"))
    assert (found.forward, found.backward) == (14, 1000 + 100 + 6)


def test_planners_count_the_operator_that_holds_most_and_all_of_its_gradient() -> None:
    assert model().temporary_bytes(2).tolist() == [1000 + 100 + 6, 1000 + 60 + 12, 1000 + 40]


def test_the_loss_keeps_as_an_operator_does() -> None:
    assert model(loss=8.0).activation_bytes(OPS) == model().activation_bytes(OPS) + 8
    assert model(loss=8.0).recomputed_bytes(("c",), "full") == 1 + 8


@pytest.mark.parametrize("samples", [1, 7])
def test_a_table_that_does_not_know_says_nothing(samples: float) -> None:
    unknown = model(known=False)
    assert not unknown.knows_temporaries
    assert task_bytes(unknown, OPS, samples) == TaskBytes(0, 0, 0)
    assert unknown.temporary_bytes(samples).tolist() == [0, 0, 0]
