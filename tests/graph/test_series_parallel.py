"""The decomposition of small graphs, drawn by hand."""

import itertools

import pytest

from graphpipe.graph import Edge, Graph, Leaf, Op, Parallel, Series, decompose


def graph_of(text: str) -> Graph:
    """Return the graph of `a>b>c, a>c`."""
    names: dict[str, None] = {}
    edges: dict[tuple[str, str], None] = {}
    for path in text.replace(" ", "").split(","):
        stops = path.split(">")
        names.update(dict.fromkeys(stops))
        edges.update(dict.fromkeys(itertools.pairwise(stops)))
    return graph_from(list(names), list(edges))


def graph_from(names: list[str], edges: list[tuple[str, str]]) -> Graph:
    return Graph(
        name="test",
        ops=tuple(Op(name=name) for name in names),
        edges=tuple(Edge(source=source, target=target) for source, target in edges),
    )


def series(*parts: str | Leaf | Parallel) -> Series:
    return Series(tuple(Leaf(part) if isinstance(part, str) else part for part in parts))


def parallel(*branches: str | Series) -> Parallel:
    return Parallel(tuple(series(*branch) if isinstance(branch, str) else branch for branch in branches))


SMALL = {
    "one operator": ("a", series("a")),
    "chain": ("a>b>c", series("a", "b", "c")),
    "diamond": ("a>b>d, a>c>d", series("a", parallel("b", "c"), "d")),
    "towers": ("a>b>x, c>x, d>x", series(parallel("ab", "c", "d"), "x")),
    "several sinks": ("a>b>c, a>d", series("a", parallel("bc", "d"))),
    "no edges at all": ("a, b", series(parallel("a", "b"))),
    "skip connection": ("a>b>c, a>c", series("a", "b", "c")),
    "overlapping skips": ("a>b>c>d>e, a>c, b>d, c>e, a>e", series("a", "b", "c", "d", "e")),
    "skip over a fork": ("a>b>c>e, b>d>e, a>e", series("a", "b", parallel("c", "d"), "e")),
    "skip into a branch": ("s>a>b>t, s>b, s>c>t", series("s", parallel("ab", "c"), "t")),
    "nested": ("s>a>b>d>t, a>c>d, s>e>t", series("s", parallel(series("a", parallel("b", "c"), "d"), "e"), "t")),
    "complete bipartite": ("a>c, a>d, b>c, b>d", series(parallel("a", "b"), parallel("c", "d"))),
    "bipartite in a branch": (
        "s>a>c>t, a>d>t, s>b>c, b>d, s>e>t",
        series("s", parallel(series(parallel("a", "b"), parallel("c", "d")), "e"), "t"),
    ),
    "bipartite behind a skip": ("s>a>c, a>d, s>b>c, b>d, s>d", series("s", parallel("a", "b"), parallel("c", "d"))),
    # Irreducible: c waits for a and b, d for b only. The tree makes d wait for a too.
    "irreducible": ("a>c, b>c, b>d", series(parallel("a", "b"), parallel("c", "d"))),
    "cross edge between towers": (
        "a>b>c>z, d>e>f>z, a>f",
        series(parallel("a", "de"), parallel("bc", "f"), "z"),
    ),
}


@pytest.mark.parametrize(("edges", "tree"), SMALL.values(), ids=SMALL.keys())
def test_small_graphs(edges: str, tree: Series) -> None:
    assert decompose(graph_of(edges)) == tree


def test_branches_are_in_graph_order() -> None:
    graph = graph_from(["c", "join", "a", "b"], [("b", "join"), ("a", "join"), ("c", "join")])
    assert decompose(graph) == series(parallel("c", "a", "b"), "join")


def test_a_core_inside_a_branch_does_not_change_the_other_branches() -> None:
    # An N between s and t (a>c, b>c, b>d) beside a long branch e>f.
    tree = decompose(graph_of("s>a>c>t, s>b>c, b>d>t, s>e>f>t"))
    assert tree == series("s", parallel(series(parallel("a", "b"), parallel("c", "d")), "ef"), "t")


def test_cores_in_sequence_stay_separate() -> None:
    one, two = "s>a>c>m, s>b>c, b>d>m", "m>e>g>t, m>f>g, f>h>t"
    assert decompose(graph_of(f"{one}, {two}")) == series(
        "s", parallel("a", "b"), parallel("c", "d"), "m", parallel("e", "f"), parallel("g", "h"), "t"
    )
