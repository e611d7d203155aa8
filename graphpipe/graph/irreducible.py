"""Reduce what edge reductions cannot: transitive edges, complete bipartite joins, irreducible cores."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graphpipe.graph.reduction import Branches, Network


def drop_transitive_edges(net: Network) -> None:
    """Remove each empty edge whose ends are also joined by another path. Reachability stays the same.

    Uses bit sets over the remaining vertices, so it is quadratic in their number, with a small constant.
    """
    order = net.order()
    bit = {vertex: 1 << position for position, vertex in enumerate(reversed(order))}
    below: dict[int, int] = {}
    for vertex in reversed(order):
        targets = net.after[vertex]
        beyond = 0
        for target in targets:
            beyond |= below[target]
        below[vertex] = beyond
        for target in targets:
            below[vertex] |= bit[target]
        for target in [target for target, branches in targets.items() if not branches and beyond & bit[target]]:
            net.remove(vertex, target)


def contract_bicliques(net: Network) -> None:
    """Replace the edges of each complete bipartite join of empty edges by edges through one new vertex.

        u1 -> v1, u1 -> v2                 u1 -> o,  o -> v1
        u2 -> v1, u2 -> v2     becomes     u2 -> o,  o -> v2

    Without transitive edges, edge reductions then reduce every series-parallel partial order to one edge.

    References:
        Valdes, Tarjan, Lawler: The recognition of series parallel digraphs. SIAM J. Comput. 11 (1982), section 4.
    """
    for vertex in net.order():
        targets = list(net.after[vertex])
        sources = list(net.before[targets[0]]) if targets else []
        if len(targets) > 1 and len(sources) > 1 and _is_biclique(net, sources, targets):
            hub = net.new_vertex()
            for source in sources:
                for target in targets:
                    net.remove(source, target)
                net.add(source, hub, [])
            for target in targets:
                net.add(hub, target, [])


def _is_biclique(net: Network, sources: Collection[int], targets: Collection[int]) -> bool:
    return all(net.before[target].keys() == set(sources) for target in targets) and all(
        net.after[source].keys() == set(targets) and not any(net.after[source].values()) for source in sources
    )


@dataclass(frozen=True, slots=True)
class _Core:
    """A part of the network that is connected to the rest only through two vertices."""

    source: int
    sink: int
    inner: frozenset[int]


def collapse_cores(net: Network) -> None:
    """Replace each of the smallest two-terminal cores of a network that cannot be reduced further by one edge.

    A core is cut into layers, one after the other, each with its edges side by side. Every existing order is kept, so
    the result is valid. Some operators that were independent become ordered, so some parallelism is lost.

        x3 must precede y7         --x1..x3-->o--x4..x9-->         layer 1: x1..x3 beside y1..y6
                                               `-.                 layer 2: x4..x9 beside y7..y9
                                   --y1..y6------>o--y7..y9-->
    """
    position = {vertex: place for place, vertex in enumerate(net.order())}
    gone: set[int] = set()
    ends: set[int] = set()
    for core in sorted(_find_cores(net, position), key=lambda core: len(core.inner)):
        if gone.isdisjoint(core.inner | {core.source, core.sink}) and ends.isdisjoint(core.inner):
            _collapse(net, core, sorted(core.inner, key=position.__getitem__))
            gone |= core.inner
            ends |= {core.source, core.sink}


def _find_cores(net: Network, position: Mapping[int, int]) -> list[_Core]:
    # In any topological order, the first vertex of a core has the core's source as its only predecessor. The core's
    # sink is on every path from that vertex to the end: it is the nearest such vertex that closes the core.
    meeting = _meeting_points(net, list(position))
    cores: list[_Core] = []
    inner_by_ends: dict[tuple[int, int], set[int]] = {}
    for vertex in position:
        if len(net.before[vertex]) == 1 and vertex != net.sink:
            (source,) = net.before[vertex]
            sink = meeting[vertex]
            while vertex not in inner_by_ends.setdefault((source, sink), set()):
                inner = _between(net, vertex, source, sink, position)
                if inner is not None:
                    cores.append(_Core(source, sink, inner))
                    inner_by_ends[source, sink] |= inner
                elif sink == net.sink:
                    break
                else:
                    sink = meeting[sink]
    return cores


def _meeting_points(net: Network, order: Sequence[int]) -> Mapping[int, int]:
    """Return, by vertex, the first other vertex on all its paths to the sink (its immediate post-dominator)."""
    meeting = {net.sink: net.sink}
    height = {net.sink: 0}
    for vertex in reversed(order[:-1]):
        first, *others = net.after[vertex]
        for other in others:
            while first != other:
                if height[first] >= height[other]:
                    first = meeting[first]
                else:
                    other = meeting[other]
        meeting[vertex], height[vertex] = first, height[first] + 1
    return meeting


def _between(net: Network, start: int, source: int, sink: int, position: Mapping[int, int]) -> frozenset[int] | None:
    """Return the vertices connected with `start` when source and sink are removed. None if they do not form a core."""
    inside = {start}
    reached = [(position[start], start)]
    while reached:
        # The earliest vertex first, because a vertex outside the core is found soonest there.
        _, vertex = heapq.heappop(reached)
        for other in (*net.before[vertex], *net.after[vertex]):
            if other not in inside and other not in (source, sink):
                if not position[source] < position[other] < position[sink]:
                    return None
                inside.add(other)
                heapq.heappush(reached, (position[other], other))
    return frozenset(inside)


def _collapse(net: Network, core: _Core, order: Sequence[int]) -> None:
    # A vertex's layer is the largest number of operator-carrying edges on a path to it from the core's source.
    # A path from edge e to edge f makes f's layer later, so edges of one layer are independent.
    layer = {core.source: 0}
    edges: list[tuple[int, Branches]] = []
    for vertex in [*order, core.sink]:
        inward = [source for source in net.before[vertex] if source in core.inner or vertex in core.inner]
        layer[vertex] = max(layer[source] + bool(net.before[vertex][source]) for source in inward)
        edges += [(layer[source], net.before[vertex][source]) for source in inward]
        for source in inward:
            net.remove(source, vertex)
    layers: list[Branches] = [[] for _ in range(layer[core.sink])]
    for position, branches in edges:
        if branches:  # an empty edge into the sink has no layer
            layers[position].extend(branches)
    net.add(core.source, core.sink, net.in_series(layers))
