"""What a person writes to split an operator is understood, or refused with what can be split."""

from dataclasses import replace

import pytest
from split_layer import layer_graph, table_graph, wide_graph

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph, find_split

GRAPHS = {"layer": layer_graph(), "table": table_graph(), "wide": wide_graph()}


def test_a_name_says_how_an_operator_is_split() -> None:
    assert find_split(layer_graph(), "head") == layer_graph()["head"].splits[0]
    found = {name: find_split(GRAPHS[graph], name) for graph, name in (("wide", "end:2"), ("table", "wide:rows4"))}
    cuts = {name: (each.by, [(part.start, part.stop) for part in each.branches]) for name, each in found.items()}
    assert cuts == {
        "end:2": ("outputs", [(0, 2), (2, 5)]),
        "wide:rows4": ("rows", [(0, 2), (2, 5), (5, 7), (7, 10)]),
    }


@pytest.mark.parametrize(
    ("graph", "name", "message"),
    [
        ("layer", "left", "operator 'left' cannot be split by its inputs. Operators that can be split: head."),
        ("layer", "head:2", "operator 'head' cannot be split by its outputs. Operators that can be split: head."),
        ("layer", "haed", "'haed' is not an operator. Operators that can be split: head."),
        ("wide", "end:rows2", "operator 'end' cannot be split by its rows. Operators that can be split: end:2."),
        ("table", "wide:4", "operator 'wide' cannot be split by its outputs. Operators that can be split: wide:rows2."),
        ("wide", "end:1", "operator 'end' cannot be split in 1 parts, because it has 5 features. Choose 2 to 5 parts."),
        ("wide", "end:6", "operator 'end' cannot be split in 6 parts, because it has 5 features. Choose 2 to 5 parts."),
        (
            *("table", "wide:rows11"),
            "operator 'wide' cannot be split in 11 parts, because it has 10 rows. Choose 2 to 10 parts.",
        ),
        *(
            (
                *("table", f"wide:{way}"),
                f"'wide:{way}' does not say how 'wide' is split. Write wide:4 for 4 parts by its outputs, or "
                "wide:rows4 for 4 parts by the rows of an embedding.",
            )
            for way in ("rows", "columns4", "rows-2", "")
        ),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(graph: str, name: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        find_split(GRAPHS[graph], name)
    assert str(caught.value) == f"split: {message}"


def test_a_layer_inside_an_operator_is_refused_with_the_operator_to_look_into() -> None:
    graph = table_graph()
    held = tuple(replace(op, parameters=("wide.fc.weight",)) if op.name == "wide" else op for op in graph.ops)
    inside: Graph = replace(graph, ops=held)
    with pytest.raises(InvalidInput, match=r"'wide\.fc' is inside operator 'wide'.*--look-into wide"):
        find_split(inside, "wide.fc:rows2")
