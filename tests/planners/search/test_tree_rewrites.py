"""Rewrites and walks of trees that are thousands of levels deep."""

from functools import reduce

import numpy as np

from graphpipe.graph import Edge, Graph, Op
from graphpipe.graph.tree import Leaf, Parallel, Series, inner_first
from graphpipe.planners.search.tree_rewrites import bundled, cut_bytes, mirrored, paired, width

LEVELS = 1_050
NAMES = [f"o{at}" for at in range(2 * LEVELS + 1)]


def _around(tree: Series, names: tuple[str, str]) -> Series:
    return Series((Leaf(names[0]), Parallel((tree, Series((Leaf(names[1]),))))))


DEEP = reduce(_around, zip(NAMES[1::2], NAMES[2::2], strict=True), Series((Leaf(NAMES[0]),)))


def test_no_walk_of_a_deep_tree_recurses():
    # A graph of 3,000 operators, each of which read one or two of the four before it, ended in a RecursionError.
    assert sum(1 for _ in inner_first(DEEP)) == 2 * LEVELS + 1
    assert width(DEEP) == 2
    assert sorted(mirrored(DEEP).ops) == sorted(NAMES)
    assert mirrored(mirrored(DEEP)).ops == DEEP.ops
    assert width(bundled(DEEP, 1)) == 1
    assert bundled(DEEP, 1).ops == DEEP.ops
    assert set(paired(DEEP, dict.fromkeys(NAMES, 1.0)).ops) == set(NAMES)


def test_inner_series_come_before_those_around_them():
    seen = set[int]()
    for series in inner_first(DEEP):
        branches = [branch for part in series.parts if isinstance(part, Parallel) for branch in part.branches]
        assert all(id(branch) in seen for branch in branches)
        seen.add(id(series))


def test_bytes_over_the_cuts_of_each_series():
    # a reads nothing, b and c read a, d reads b and c: the block of b and c is between a and d.
    graph = Graph(
        name="diamond",
        ops=tuple(Op(name=name) for name in "abcd"),
        edges=tuple(
            Edge(source=one, target=other, bytes_per_sample=count)
            for one, other, count in (("a", "b", 4.0), ("a", "c", 4.0), ("b", "d", 1.0), ("c", "d", 2.0))
        ),
    )
    branches = Series((Leaf("b"),)), Series((Leaf("c"),))
    tree = Series((Leaf("a"), Parallel(branches), Leaf("d")))
    cuts = cut_bytes(tree, graph)
    assert np.allclose(cuts[id(tree)], (0.0, 4.0, 3.0, 0.0))
    assert cuts[id(branches[0])] == (0.0, 1.0)
    assert cuts[id(branches[1])] == (0.0, 2.0)
