"""Groups of nodes, each of which becomes one operator; the groups form no cycle."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import fx

Groups = tuple[tuple[fx.Node, ...], ...]
"""In topological order; the nodes of a group in order of execution."""
Reads = Callable[[fx.Node], Iterable[fx.Node]]
"""Returns the values of other nodes that a node reads, directly or through nodes in no group."""
_Neighbours = Mapping[fx.Node, set[fx.Node]]


def acyclic_groups(nodes: Sequence[fx.Node], representative: Mapping[fx.Node, fx.Node], reads: Reads) -> Groups:
    """Return the groups of nodes with equal representatives; groups on a common cycle become one group.

    These are the strongly connected components of the graph of groups (Kosaraju's algorithm).

    Args:
        nodes: in order of execution.
        representative: of each node, one node of its group.
        reads: what each node reads.
    """
    before, after = _neighbours(nodes, representative, reads)
    finished: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for start in after:
        _append_reachable(start, after, seen, finished)
    component: dict[fx.Node, fx.Node] = {}
    for start in reversed(finished):
        found: list[fx.Node] = []
        _append_reachable(start, before, set(component), found)
        component.update(dict.fromkeys(found, start))
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(component[representative[node]], []).append(node)
    position = {node: index for index, node in enumerate(nodes)}
    return tuple(sorted((tuple(group) for group in members.values()), key=lambda group: position[group[-1]]))


def _neighbours(
    nodes: Sequence[fx.Node], representative: Mapping[fx.Node, fx.Node], reads: Reads
) -> tuple[dict[fx.Node, set[fx.Node]], dict[fx.Node, set[fx.Node]]]:
    # The groups that each group reads, and the groups that read it, by representative.
    before: dict[fx.Node, set[fx.Node]] = {representative[node]: set() for node in nodes}
    after: dict[fx.Node, set[fx.Node]] = {representative[node]: set() for node in nodes}
    for node in nodes:
        for value in reads(node):
            if value in representative and representative[value] is not representative[node]:
                after[representative[value]].add(representative[node])
                before[representative[node]].add(representative[value])
    return before, after


def _append_reachable(start: fx.Node, neighbours: _Neighbours, seen: set[fx.Node], finished: list[fx.Node]) -> None:
    # Depth first, without recursion; appends in order of finishing.
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(neighbours[start]))]
    while stack:
        node, rest = stack[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            finished.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(neighbours[following])))
