"""Paths that cover a graph: a stage, being convex, holds an unbroken stretch of each."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from graphpipe.graph import Graph


@dataclass(frozen=True, slots=True)
class Chain:
    """Equal paths: as many operators of the same classes, in the same order."""

    ops: tuple[int, ...]
    """Positions in `graph.ops` of one of them."""
    copies: int
    """How many there are."""


def chains(graph: Graph, classes: Mapping[str, Hashable]) -> list[Chain]:
    """Return disjoint paths that hold every operator, equal ones together.

    Args:
        graph: what to cover.
        classes: operators of one class cost the same.
    """
    paths: list[list[str]] = []
    ending: dict[str, list[str]] = {}
    for name in graph.order:
        # The longest path that ends at a predecessor goes on.
        before = [ending[other] for other in graph.predecessors[name] if other in ending]
        path = max(before, key=len, default=[])
        if path:
            del ending[path[-1]]
        else:
            paths.append(path)
        path.append(name)
        ending[name] = path
    known: dict[tuple[Hashable, ...], list[list[str]]] = {}
    for path in paths:
        known.setdefault(tuple(classes[name] for name in path), []).append(path)
    return [Chain(tuple(graph.index[name] for name in same[0]), len(same)) for same in known.values()]
