"""A split operator becomes one operator per branch, and a sum that keeps its name."""

from dataclasses import replace

import pytest
from split_layer import LAYER, layer_graph, table_graph, wide_graph

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


def test_an_embedding_is_split_by_its_rows() -> None:
    graph = split_ops(table_graph(), ["wide:rows3"])
    parts, wide = [graph[f"wide.part{number}"] for number in range(3)], graph["wide"]
    assert [op.parameters for op in parts] == [("wide.weight[0:3]",), ("wide.weight[3:6]",), ("wide.weight[6:10]",)]
    assert [op.parameter_bytes for op in parts] == [12.0, 12.0, 16.0]
    assert [op.output_bytes_per_sample for op in parts] == [24.0] * 3, "the whole width, with zeros for other parts"
    assert [op.model_inputs for op in (*parts, wide)] == [("ids",), ("ids",), ("ids",), ()]
    # Every part looks up all indices: 8 lists of them, and 3 times the result.
    look_up = Work(traffic_bytes_per_sample=8 * 48.0 + 3 * 24.0, saved_bytes_per_sample=48.0 + 6.0, kernels=7)
    assert [op.work for op in parts] == [look_up] * 3
    # what follows: 24 read, 4 written; two additions: 48 read, 24 written each
    assert wide.work == Work(traffic_bytes_per_sample=28.0 + 144.0, kernels=3)
    assert (wide.parameters, wide.parameter_bytes) == ((), 0.0)
    assert {(edge.source, edge.target): edge.bytes_per_sample for edge in graph.edges} == {
        ("wide.part0", "wide"): 24.0,
        ("wide.part1", "wide"): 24.0,
        ("wide.part2", "wide"): 24.0,
        ("wide", "end"): 4.0,
    }


def test_a_frozen_embedding_keeps_nothing_for_its_backward() -> None:
    graph = table_graph()
    frozen = replace(graph, ops=tuple(replace(op, trainable=False) for op in graph.ops))
    assert split_ops(frozen, ["wide:rows2"])["wide.part0"].work.saved_bytes_per_sample == 0.0


def test_an_operator_is_split_once() -> None:
    with pytest.raises(InvalidInput, match=r"split: operator 'wide' is to be split twice\. Name it once\."):
        split_ops(table_graph(), ["wide:rows2", "wide:rows3"])
