"""A split operator becomes one operator per branch, and a sum that keeps its name."""

from dataclasses import replace

import pytest
from split_layer import LAYER, layer_graph, wide_graph

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, Op, Work, split_ops, splittable

PARTS = ("head.linear.part0", "head.linear.part1", "head.linear.part2")


def test_the_parts_have_what_their_columns_have_of_the_layer() -> None:
    graph = split_ops(layer_graph(), ["head"])
    first, second, third = (graph[name] for name in PARTS)
    assert [op.parameters for op in (first, second, third)] == [
        ("head.linear.bias", "head.linear.weight[:, 0:4]"),
        ("head.linear.weight[:, 4:6]",),
        ("head.linear.weight[:, 6:8]",),
    ]
    assert [op.parameter_bytes for op in (first, second, third)] == [80.0 + 20.0, 40.0, 40.0]
    assert second.work == Work(
        flops_per_sample=20.0, traffic_bytes_per_sample=8.0 + 20.0, saved_bytes_per_sample=8.0, kernels=1
    )
    assert third.model_inputs == ("x",)
    assert third.work.saved_bytes_per_sample == 0.0, "rows of the mini-batch are there anyway"


def test_the_sum_has_what_is_left() -> None:
    head = split_ops(layer_graph(), ["head"])["head"]
    assert head == Op(
        name="head",
        kind="Dense",
        output_bytes_per_sample=20.0,
        # activation: 20 read, 20 written; two additions: 40 read, 20 written each
        work=Work(flops_per_sample=0.0, traffic_bytes_per_sample=40.0 + 120.0, saved_bytes_per_sample=20.0, kernels=3),
    )


def test_the_edges_lead_through_the_parts() -> None:
    graph = split_ops(layer_graph(), ["head"])
    assert {(edge.source, edge.target): edge.bytes_per_sample for edge in graph.edges} == {
        ("left", PARTS[0]): 16.0,
        ("right", PARTS[1]): 8.0,
        ("right", "head"): 4.0,
        (PARTS[0], "head"): 20.0,
        (PARTS[1], "head"): 20.0,
        (PARTS[2], "head"): 20.0,
        ("head", "end"): 20.0,
    }
    assert graph.origin is not None
    assert graph.origin.split_ops == (LAYER,)
    assert splittable(graph) == ()


def test_what_can_be_split_is_not_in_the_fingerprint() -> None:
    # Plans and cost tables of schema version 1 were made for graphs that did not say it.
    graph = layer_graph()
    plain = replace(graph, ops=tuple(replace(op, splits=()) for op in graph.ops))
    assert graph.fingerprint == plain.fingerprint
    assert split_ops(graph, ["head"]).fingerprint != graph.fingerprint


def test_a_graph_survives_its_file(tmp_path: object) -> None:
    graph = split_ops(layer_graph(), ["head"])
    path = f"{tmp_path}/graph.json"
    graph.save(path)
    assert Graph.load(path) == graph


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("left", "split: operator 'left' cannot be split by its inputs. Operators that can be split: head."),
        ("head:2", "split: operator 'head' cannot be split by its outputs. Operators that can be split: head."),
        ("haed", "split: 'haed' is not an operator. Operators that can be split: head."),
    ],
)
def test_an_operator_that_cannot_be_split_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_ops(layer_graph(), [name])
    assert str(caught.value) == message


def test_a_layer_is_split_by_its_outputs() -> None:
    graph = split_ops(wide_graph(), ["end:2"])
    first, second, end = (graph[name] for name in ("end.part0", "end.part1", "end"))
    assert (first.parameters, second.parameters) == (
        ("end.bias[0:2]", "end.weight[0:2]"),
        ("end.bias[2:5]", "end.weight[2:5]"),
    )
    assert [op.parameter_bytes for op in (first, second, end)] == [24.0, 36.0, 0.0]
    assert [op.output_bytes_per_sample for op in (first, second, end)] == [8.0, 12.0, 20.0]
    assert second.work == Work(flops_per_sample=12.0, traffic_bytes_per_sample=8.0 + 12.0, kernels=1)
    assert end.work == Work(traffic_bytes_per_sample=40.0, kernels=1), "a concatenation"
    assert {(edge.source, edge.target): edge.bytes_per_sample for edge in graph.edges} == {
        ("start", "end.part0"): 8.0,
        ("start", "end.part1"): 8.0,
        ("end.part0", "end"): 8.0,
        ("end.part1", "end"): 12.0,
    }


@pytest.mark.parametrize("name", ["end:1", "end:6"])
def test_a_layer_is_split_in_as_many_parts_as_it_has_features(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"because it has 5 features\. Choose 2 to 5 parts"):
        split_ops(wide_graph(), [name])
