"""The dynamic programme against all covers of small graphs, and the evolutionary search against known optima."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpipe.graph import Edge, Graph, Op
from graphpipe.profiler.placement.evolution import Genome, evolve
from graphpipe.profiler.placement.frontier_program import Pattern, cheapest_cover
from graphpipe.profiler.placement.patterns import patterns_of


def make(edges: Sequence[tuple[int, int]], count: int) -> Graph:
    """Return a graph of operators o0, o1, ..."""
    ops = tuple(Op(name=f"o{n}") for n in range(count))
    listed = tuple(Edge(source=f"o{a}", target=f"o{b}", bytes_per_sample=1.0) for a, b in edges)
    return Graph(name="g", ops=ops, edges=listed)


def test_patterns_have_one_output() -> None:
    graph = make([(0, 1), (1, 2), (0, 3), (3, 2)], 4)
    found = patterns_of(graph, graph.order, 4)
    assert found["o0"] == [("o0",)]
    assert found["o1"] == [("o1",)]
    assert {*found["o2"]} == {("o2",), ("o1", "o2"), ("o2", "o3"), ("o1", "o2", "o3"), ("o0", "o1", "o2", "o3")}
    inside = patterns_of(graph, ("o0", "o1", "o2"), 4)  # o3, which is in another stage, reads o0
    assert {*inside["o2"]} == {("o2",), ("o1", "o2")}


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, dict[Pattern, dict[str, float]], float]:
    """Graphs of up to 10 operators, with random seconds of each pattern on up to three backends."""
    count = draw(st.integers(1, 10))
    pairs = [(a, b) for b in range(1, count) for a in range(b)]
    near = [pair for pair in pairs if pair[1] - pair[0] <= 3]
    graph = make(draw(st.lists(st.sampled_from(near), unique=True)) if near else [], count)
    costs: dict[Pattern, dict[str, float]] = {}
    for patterns in patterns_of(graph, graph.order, 3).values():
        for pattern in patterns:
            some = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9).map(float), max_size=2)
            costs[pattern] = draw(some) | ({"eager": draw(st.integers(1, 9)) * 1.0} if len(pattern) == 1 else {})
    return graph, costs, draw(st.sampled_from([0.0, 0.5, 3.0]))


def covers(left: frozenset[str], costs: Mapping[Pattern, Mapping[str, float]], launch: float) -> Iterator[float]:
    """Yield the seconds of every cover, in whatever order its pieces come."""
    if not left:
        yield 0.0
        return
    some = min(left)
    for pattern, by_backend in costs.items():
        if some in pattern and left.issuperset(pattern):
            for rest in covers(left.difference(pattern), costs, launch):
                yield from (rest + seconds + launch for seconds in by_backend.values())


@settings(max_examples=20)
@given(problem=problems())
def test_the_cover_is_that_of_exhaustive_search(
    problem: tuple[Graph, dict[Pattern, dict[str, float]], float],
) -> None:
    graph, costs, launch = problem

    def cheapest(pattern: Pattern) -> tuple[float, str] | None:
        return min(((seconds, name) for name, seconds in costs[pattern].items()), default=None)

    found = cheapest_cover(graph, patterns_of(graph, graph.order, 3), cheapest, launch)
    assert found is not None
    seconds, cover = found
    assert seconds == pytest.approx(min(covers(frozenset(graph.order), costs, launch)))
    assert sorted(op for placed in cover for op in placed.ops) == sorted(graph.order)
    assert seconds == pytest.approx(sum(costs[each.ops][each.backend] + launch for each in cover))


def test_an_operator_that_no_backend_runs() -> None:
    graph = make([(0, 1)], 2)
    assert cheapest_cover(graph, patterns_of(graph, graph.order), lambda pattern: None) is None


def test_evolution_finds_what_helps_and_repeats_itself() -> None:
    asked: list[Genome] = []

    def seconds(genome: Genome) -> float:
        asked.append(genome)
        return inf if genome[0] else sum(bit != (n % 2 == 1) for n, bit in enumerate(genome)) + 1.0

    best = evolve(8, seconds, seed=3, generations=12)
    assert best == (1.0, tuple(n % 2 == 1 for n in range(8)))
    assert len(asked) == len({*asked})
    assert asked[:2] == [(False,) * 8, (True,) * 8]
    assert evolve(8, seconds, seed=3, generations=12) == best
    assert evolve(1, lambda genome: 2.0 - genome[0]) == (1.0, (True,))
