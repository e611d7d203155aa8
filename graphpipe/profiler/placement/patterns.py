"""Patterns: small sets of operators with one output, which a backend can run as one piece.

    a - b - c          with c as root: {c}, {b, c}, {a, b, c}
     \\- d              not {a, b, c} if d reads a too: a's output would leave the pattern

If all pieces have one output, no two of them read from each other, so any cover of the graph by patterns can run.
"""

from collections.abc import Collection

from graphpipe.graph import Graph

LONGEST = 4
"""Operators of the largest pattern, by default."""


def patterns_of(graph: Graph, ops: Collection[str], longest: int = LONGEST) -> dict[str, list[tuple[str, ...]]]:
    """Return the patterns inside `ops` by their root, the operator whose output leaves them; smallest first.

    All other operators of a pattern are read only inside it. An operator that computes an output of the model, or that
    an operator outside `ops` reads, is always a root.

    Args:
        graph: of the model.
        ops: operators of a stage.
        longest: most operators of a pattern.
    """
    inside = frozenset(ops)
    return {root: _grown(graph, inside, root, longest) for root in graph.order if root in inside}


def _grown(graph: Graph, inside: frozenset[str], root: str, longest: int) -> list[tuple[str, ...]]:
    patterns, level = [frozenset([root])], [frozenset([root])]
    for _ in range(longest - 1):
        grown: dict[frozenset[str], None] = {}
        for pattern in level:
            for name in {before for op in pattern for before in graph.predecessors[op]} - pattern:
                if name in inside and graph.successors[name] and pattern.issuperset(graph.successors[name]):
                    grown[pattern | {name}] = None
        level = list(grown)
        patterns += level
    place = graph.index
    return [tuple(sorted(pattern, key=place.__getitem__)) for pattern in patterns]
