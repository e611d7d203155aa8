"""The verifier refuses split operators whose parts are not exactly the whole layer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from split_layer import LAYER, layer_graph, table_graph, wide_graph

from graphpipe.errors import InvalidInput
from graphpipe.graph import Edge, Graph, Op, split_ops
from graphpipe.graph.splits.verify_splits import check_splits

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
    check_splits(split_ops(table_graph(), ["wide:rows3"]))


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


def with_rows(start: int, stop: int) -> Callable[[Graph], Graph]:
    """Change the rows of the second part, both in what was split and in the part."""

    def change(graph: Graph) -> Graph:
        assert graph.origin is not None
        (split,) = graph.origin.split_ops
        branches = tuple(
            replace(each, start=start, stop=stop) if number == 1 else each for number, each in enumerate(split.branches)
        )
        changed = replace(split, branches=branches)
        named = with_op(lambda op: replace(op, parameters=(changed.slices[1].name,)), "wide.part1")(graph)
        return replace(named, origin=replace(graph.origin, split_ops=(changed,)))

    return change


ROWS: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "rows are in two parts": (with_rows(2, 6), "part 1 has rows 2 to 6, must begin at row 3. Every row must be"),
    "rows are in no part": (with_rows(3, 5), "part 2 has rows 6 to 10, must begin at row 5. Every row must be"),
    "a part has columns": (
        with_op(lambda op: replace(op, parameters=("wide.weight[:, 3:6]",)), "wide.part1"),
        "part 1 has wide.weight[:, 3:6], must have rows 3 to 6 of 'wide.weight'",
    ),
    "a part sends some columns": (
        with_op(lambda op: replace(op, output_bytes_per_sample=8.0), "wide.part1"),
        "part 1 has 8 output bytes per sample, must have 24",
    ),
    "a part has all bytes": (
        with_op(lambda op: replace(op, parameter_bytes=40.0), "wide.part1"),
        "part 1 has 40 parameter bytes, must have 12",
    ),
    "a part is added twice": (
        lambda graph: replace(
            graph, edges=(*graph.edges, Edge(source="wide.part1", target="end", bytes_per_sample=24.0))
        ),
        "part 1 must send its result only to 'wide'",
    ),
    "the sum keeps the table": (
        with_op(lambda op: replace(op, parameters=("wide.weight",)), "wide"),
        "operator 'wide' still has the whole 'wide.weight'",
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_changed_rows_are_refused(what: str) -> None:
    change, message = ROWS[what]
    with pytest.raises(InvalidInput) as caught:
        check_splits(change(split_ops(table_graph(), ["wide:rows3"])))
    assert message in str(caught.value)
