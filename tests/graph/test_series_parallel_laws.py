"""The decomposition's laws: exact on series-parallel orders, valid on every graph, fast on large ones."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.graph import Edge, Graph, Leaf, Op, Parallel, Series, decompose

Pairs = set[tuple[int, int]]


def graph_from(count: int, edges: Pairs) -> Graph:
    """Return a graph of operators 0, 1, ..., with edges from lower to higher numbers."""
    return Graph(
        name="test",
        ops=tuple(Op(name=str(number)) for number in range(count)),
        edges=tuple(Edge(source=str(source), target=str(target)) for source, target in sorted(edges)),
    )


def closure(count: int, edges: Pairs) -> Pairs:
    """Return all pairs (a, b) where a path leads from a to b."""
    reach = set(edges)
    for middle, first, last in itertools.product(range(count), repeat=3):
        if (first, middle) in reach and (middle, last) in reach:
            reach.add((first, last))
    return reach


def ordered_by(tree: Series | Parallel | Leaf) -> Pairs:
    """Return all pairs (a, b) that the tree puts one before the other."""
    if isinstance(tree, Leaf):
        return set()
    children = tree.parts if isinstance(tree, Series) else tree.branches
    pairs = {pair for child in children for pair in ordered_by(child)}
    if isinstance(tree, Series):
        for before, after in itertools.combinations(children, 2):
            pairs |= set(itertools.product(numbers(before), numbers(after)))
    return pairs


def numbers(tree: Series | Parallel | Leaf) -> list[int]:
    return [int(tree.op)] if isinstance(tree, Leaf) else [int(name) for name in tree.ops]


def is_series_parallel(count: int, reach: Pairs) -> bool:
    """Return whether no four operators are ordered exactly a < c > b < d (theorem of Valdes et al.)."""
    for some in itertools.combinations(range(count), 4):
        pairs = {pair for pair in reach if pair[0] in some and pair[1] in some}
        for a, b, c, d in itertools.permutations(some):
            if pairs == {(a, c), (b, c), (b, d)}:
                return False
    return True


def is_normal(tree: Series | Parallel | Leaf) -> bool:
    if isinstance(tree, Leaf):
        return True
    if isinstance(tree, Series):
        return len(tree.parts) > 0 and all(is_normal(part) for part in tree.parts)
    alone = [branch for branch in tree.branches if len(branch.parts) == 1 and isinstance(branch.parts[0], Parallel)]
    return len(tree.branches) > 1 and not alone and all(is_normal(branch) for branch in tree.branches)


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, Pairs]:
    count = draw(st.integers(1, 9))
    pairs = list(itertools.combinations(range(count), 2))
    return count, draw(st.sets(st.sampled_from(pairs), max_size=16)) if pairs else set()


@settings(max_examples=150, deadline=None)
@given(dags())
def test_every_tree_is_valid_and_exact_for_series_parallel_orders(dag: tuple[int, Pairs]) -> None:
    count, edges = dag
    tree = decompose(graph_from(count, edges))
    order, reach = numbers(tree), closure(count, edges)
    assert sorted(order) == list(range(count))
    assert is_normal(tree)
    # The tree keeps every order of the graph. It is exact if the order is series-parallel.
    assert reach <= ordered_by(tree)
    if is_series_parallel(count, reach):
        assert reach == ordered_by(tree)


def random_tree(random: random.Random, size: int, first: int = 0, least: int = 1) -> Series:
    """Return a normal tree of at least `least` parts over `size` operators, numbered from `first` left to right."""
    parts: list[Leaf | Parallel] = []
    for share in shares(random, size, least):
        if share == 1:
            parts.append(Leaf(str(first)))
        else:
            starts = itertools.accumulate(branches := shares(random, share, 2), initial=first)
            parts.append(Parallel(tuple(random_tree(random, *at, 2) for at in zip(branches, starts, strict=False))))
        first += share
    return Series(tuple(parts))


def shares(random: random.Random, size: int, least: int) -> list[int]:
    cuts = random.sample(range(1, size), random.randint(min(least, size) - 1, min(4, size - 1)))
    return [after - before for before, after in itertools.pairwise([0, *sorted(cuts), size])]


def ends(tree: Series | Parallel | Leaf, *, first: bool) -> list[str]:
    """Return the first (last) operators of a tree."""
    if isinstance(tree, Leaf):
        return [tree.op]
    if isinstance(tree, Series):
        return ends(tree.parts[0 if first else -1], first=first)
    return [name for branch in tree.branches for name in ends(branch, first=first)]


def edges_of(tree: Series | Parallel | Leaf) -> Pairs:
    """Return the edges of the smallest graph with this tree: last operators of a part to the first of the next."""
    if isinstance(tree, Leaf):
        return set()
    edges = {edge for child in (tree.parts if isinstance(tree, Series) else tree.branches) for edge in edges_of(child)}
    if isinstance(tree, Series):
        for here, there in itertools.pairwise(tree.parts):
            joints = itertools.product(ends(here, first=False), ends(there, first=True))
            edges |= {(int(source), int(target)) for source, target in joints}
    return edges


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_a_graph_built_from_a_tree_decomposes_into_that_tree(size: int, random: random.Random) -> None:
    tree = random_tree(random, size)
    ordered = sorted(ordered_by(tree))
    skips = set(random.sample(ordered, min(len(ordered), random.randint(0, 10))))
    assert decompose(graph_from(size, edges_of(tree) | skips)) == tree


def nest(depth: int) -> Pairs:
    """Return forks in forks: 0 -> {1 -> {2 -> ... -> -2, ...} -> -1, beside} with one operator beside each level."""
    last = 3 * depth
    edges: Pairs = {(depth - 1, last - depth)}
    for level in range(depth):
        enter, beside, leave = level, depth + level, last - 1 - level
        edges |= {(enter, beside), (beside, leave)} | (
            {(enter, enter + 1), (leave - 1, leave)} if level < depth - 1 else set()
        )
    return edges


LARGE = {
    "chain": {(at, at + 1) for at in range(4999)},
    "chain with skips": {(at, at + 1) for at in range(4999)} | {(at, at + 5) for at in range(4995)},
    "fork of 4,998": {(0, at) for at in range(1, 4999)} | {(at, 4999) for at in range(1, 4999)},
    "nest of 1,666": nest(1666),
    "random tree": edges_of(random_tree(random.Random(7), 5000)),
    "ladder": {(at, at + 2) for at in range(4998)} | {(at, at + 3) for at in range(0, 4997, 2)},
    "cores in sequence": {
        (6 * at + a, 6 * at + b)
        for at in range(833)
        for a, b in [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6)]
    },
}


@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize("edges", LARGE.values(), ids=LARGE.keys())
def test_five_thousand_operators_take_less_than_three_seconds(edges: Pairs) -> None:
    count = 1 + max(max(edge) for edge in edges)
    graph = graph_from(count, edges)
    assert len(graph.order) == count
    begin = time.process_time()
    tree = decompose(graph)
    seconds = time.process_time() - begin
    assert sorted(numbers(tree)) == list(range(count))
    assert seconds < 3.0  # takes about one second, or more if other processes share the core
