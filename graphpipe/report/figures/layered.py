"""Places the nodes of a directed acyclic graph in a picture.

a   b        A row is a layer. A node is placed as low as its readers allow, so that edges are short and a short
 \\ / \\       branch ends beside a long one. Within a layer, nodes are ordered by the mean place of their neighbours
  c   d      (the barycentre heuristic of Sugiyama, Tagawa and Toda, 1981), which removes most crossings.
"""

from collections.abc import Sequence

Edges = Sequence[tuple[int, int]]
SWEEPS = 4


def layered(count: int, edges: Edges) -> list[tuple[int, float]]:
    """Return (layer, place) of each of `count` nodes: layer 0 is on top, places of a layer are 1 apart, around 0.

    Args:
        count: of the nodes, which are numbered in topological order.
        edges: (source, target), source < target.
    """
    layer = _layers(count, edges)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in range(count):
        rows[layer[node]].append(node)
    place = _places(rows)
    for sweep in range(SWEEPS):
        # Sweep down by the layer above, then up by the layer below.
        towards = 1 if sweep % 2 else 0
        near: list[list[int]] = [[] for _ in range(count)]
        for edge in edges:
            near[edge[1 - towards]].append(edge[towards])
        for row in rows if not towards else reversed(rows):
            row.sort(key=lambda node: _mean([place[other] for other in near[node]], place[node]))
            place |= _places([row])
    return [(layer[node], place[node]) for node in range(count)]


def _layers(count: int, edges: Edges) -> list[int]:
    """Return each node's layer: the longest path of all minus the longest path from this node to a last node."""
    after = [0] * count
    for source, target in sorted(edges, reverse=True):
        after[source] = max(after[source], after[target] + 1)
    return [max(after, default=0) - distance for distance in after]


def _places(rows: Sequence[Sequence[int]]) -> dict[int, float]:
    return {node: number - (len(row) - 1) / 2 for row in rows for number, node in enumerate(row)}


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
