"""Nodes are placed below their sources, at different places, with few edge crossings."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from graphpipe.report.figures.layered import layered


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 12))
    pairs = [(source, target) for target in range(count) for source in range(target)]
    return count, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


@given(graphs())
def test_edges_point_down_and_nodes_do_not_share_a_place(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    places = layered(count, edges)
    assert all(places[source][0] < places[target][0] for source, target in edges)
    assert len(set(places)) == count
    layers = [layer for layer, _ in places]
    assert set(layers) == set(range(max(layers) + 1))
    for expected in set(layers):
        row = sorted(place for layer, place in places if layer == expected)
        assert sum(row) == 0
        assert all(after - before == 1 for before, after in pairwise(row))


def test_a_short_branch_ends_beside_a_long_one() -> None:
    # 0 -> 1 -> 3 and 2 -> 3: node 2 is placed beside node 1.
    assert [layer for layer, _ in layered(4, [(0, 1), (1, 3), (2, 3)])] == [0, 1, 1, 2]


def test_nodes_are_ordered_to_avoid_crossings() -> None:
    # 0 -> 3 and 1 -> 2 would cross if the nodes were drawn in the order of their numbers.
    places = layered(4, [(0, 3), (1, 2)])
    assert (places[0][1] < places[1][1]) == (places[3][1] < places[2][1])
