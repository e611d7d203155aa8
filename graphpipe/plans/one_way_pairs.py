"""Pairs of stages between which values pass but gradients are not sent back."""

from collections.abc import Iterable, Sequence

from graphpipe.graph import Graph


def one_way_pairs(graph: Graph, groups: Sequence[Iterable[str]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of operator groups, by position, between which only values pass, not gradients."""
    if len(graph.differentiable) == len(graph.ops):
        return frozenset()
    group_of = {name: position for position, names in enumerate(groups) for name in names}
    pairs = [(group_of[edge.source], group_of[edge.target], edge.source) for edge in graph.edges]
    returned = {(source, target) for source, target, name in pairs if name in graph.differentiable}
    return frozenset((source, target) for source, target, _ in pairs) - returned
