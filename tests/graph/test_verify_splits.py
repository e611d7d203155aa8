"""The verifier refuses split operators whose parts are not exactly the whole layer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from split_layer import LAYER, layer_graph, wide_graph

from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, split_ops
from graphpipe.graph.verify_splits import check_splits

PART = "head.linear.part1"


def with_op(change: Callable[[Op], Op], name: str = PART) -> Callable[[Graph], Graph]:
    return lambda graph: replace(graph, ops=tuple(change(op) if op.name == name else op for op in graph.ops))


def with_branch(**fields: int) -> Callable[[Graph], Graph]:
    branches = (LAYER.branches[0], replace(LAYER.branches[1], **fields), LAYER.branches[2])
    split = replace(LAYER, branches=branches)

    def change(graph: Graph) -> Graph:
        assert graph.origin is not None
        named = with_op(lambda op: replace(op, parameters=(split.slices[1].name,)))(graph)
        return replace(named, origin=replace(graph.origin, split_ops=(split,)))

    return change


CHANGES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "a part has other columns": (
        with_op(lambda op: replace(op, parameters=("head.linear.weight[:, 3:6]",))),
        "part 1 has head.linear.weight[:, 3:6], must have features 4 to 6 of 'head.linear.weight'",
    ),
    "columns are in two parts": (
        with_branch(start=3),
        "part 1 has features 3 to 6, must begin at feature 4",
    ),
    "columns are in no part": (
        with_branch(stop=5),
        "part 2 has features 6 to 8, must begin at feature 5",
    ),
    "a part has too few bytes": (
        with_op(lambda op: replace(op, parameter_bytes=39.0)),
        "part 1 has 39 parameter bytes, must have 40",
    ),
    "a part computes less": (
        with_op(lambda op: replace(op, work=replace(op.work, flops_per_sample=10.0))),
        "part 1 has 10 FLOPs per sample, must have 20",
    ),
    "two parts add the bias": (
        with_op(lambda op: replace(op, parameters=("head.linear.bias", *op.parameters))),
        "the first part, and no other, must have the bias 'head.linear.bias'",
    ),
    "the sum keeps the weight": (
        with_op(lambda op: replace(op, parameters=("head.linear.weight",)), "head"),
        "operator 'head' still has the whole 'head.linear.weight'",
    ),
    "a part reads another branch": (
        lambda graph: replace(
            graph, edges=tuple(replace(each, source="left") if each.target == PART else each for each in graph.edges)
        ),
        "part 1 must read only 'right'",
    ),
    "a part is added twice": (
        lambda graph: replace(graph, edges=(*graph.edges, Edge(source=PART, target="end", bytes_per_sample=20.0))),
        "part 1 must send its result only to 'head'",
    ),
    "a part is missing": (
        lambda graph: replace(
            graph,
            ops=tuple(op for op in graph.ops if op.name != PART),
            edges=tuple(each for each in graph.edges if PART not in (each.source, each.target)),
        ),
        f"operator '{PART}' is missing",
    ),
}


def test_what_the_rewrite_makes_is_accepted() -> None:
    check_splits(split_ops(layer_graph(), ["head"]))
    check_splits(layer_graph())
    check_splits(split_ops(wide_graph(), ["end:3"]))


def test_a_part_with_the_bias_of_another_is_refused() -> None:
    graph = split_ops(wide_graph(), ["end:2"])
    changed = with_op(lambda op: replace(op, parameters=("end.bias[0:2]", "end.weight[2:5]")), "end.part1")(graph)
    with pytest.raises(InvalidInput, match=r"part 1 has end\.bias\[0:2\], .*, must have features 2 to 5"):
        check_splits(changed)


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_graph_is_refused(what: str) -> None:
    change, message = CHANGES[what]
    with pytest.raises(InvalidInput) as caught:
        check_splits(change(split_ops(layer_graph(), ["head"])))
    assert message in str(caught.value)
    assert "split of operator 'head'" in str(caught.value)
