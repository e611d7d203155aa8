"""From the nodes of a skeleton to operators: what cannot be cut is joined, then what is tiny joins a neighbour."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from graphpipe.model.capture.crossing_values import Values
from graphpipe.model.capture.shape_propagation import Reading

Groups = tuple[tuple[fx.Node, ...], ...]


def join_uncuttable(graph: fx.Graph, values: Values) -> Groups:
    """Return the finest groups between which only carried values flow, and that form no cycle."""
    nodes = [node for node in graph.nodes if node not in values.free]
    root = {node: node for node in nodes}

    def find(node: fx.Node) -> fx.Node:
        while root[node] is not node:
            node = root[node]
        return node

    for node in nodes:
        for user in node.users:
            if node not in values.carried and user in root:
                root[find(user)] = find(node)
    for node in nodes:
        if "written_by" in node.meta:  # the copy that a call writes into has its new value only after the call
            call = next(user for user in node.users if user.target == node.meta["written_by"])
            root[find(call)] = find(node)
    return _without_cycles(nodes, {node: find(node) for node in nodes})


def _without_cycles(nodes: Sequence[fx.Node], root: Mapping[fx.Node, fx.Node]) -> Groups:
    # Two groups on a common cycle become one (strongly connected components, by reachability both ways).
    position = {node: index for index, node in enumerate(nodes)}
    after: dict[fx.Node, set[fx.Node]] = {root[node]: set() for node in nodes}
    before: dict[fx.Node, set[fx.Node]] = {root[node]: set() for node in nodes}
    for node in nodes:
        for other in node.all_input_nodes:
            if other in root and root[other] is not root[node]:
                after[root[other]].add(root[node])
                before[root[node]].add(root[other])
    component: dict[fx.Node, fx.Node] = {}
    done: list[fx.Node] = []
    seen: set[fx.Node] = set()
    for start in after:
        _finish(start, after, seen, done)
    for start in reversed(done):
        found: list[fx.Node] = []
        _finish(start, before, set(component), found)
        component.update(dict.fromkeys(found, start))
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(component[root[node]], []).append(node)
    return tuple(sorted((tuple(group) for group in members.values()), key=lambda group: position[group[-1]]))


def _finish(
    start: fx.Node, neighbours: Mapping[fx.Node, set[fx.Node]], seen: set[fx.Node], done: list[fx.Node]
) -> None:
    # Depth first without recursion; appends in order of finishing.
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(neighbours[start]))]
    while stack:
        node, rest = stack[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            done.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(neighbours[following])))


def join_output(groups: Groups) -> Groups:
    """Put the output node into the group that makes all of the output, if one group does; else it gathers alone."""
    (end,) = (group for group in groups if any(node.op == "output" for node in group))
    inside = {node: group for group in groups for node in group}
    producers = {inside[value] for value in end[-1].all_input_nodes if value in inside}
    if len(end) > 1 or len(producers) != 1:
        return groups
    (producer,) = producers
    return tuple((*group, *end) if group is producer else group for group in groups if group is not end)


@dataclass(slots=True, kw_only=True)
class _Links:
    # Groups by number, and who reads whom.
    members: dict[int, list[fx.Node]]
    before: dict[int, set[int]]
    after: dict[int, set[int]]

    def merge(self, group: int, into: int) -> None:
        self.members[into] += self.members.pop(group)
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for other in mine.pop(group):
                theirs[other].discard(group)
                if other != into:
                    theirs[other].add(into)
                    mine[into].add(other)

    def ancestors(self, group: int) -> set[int]:
        stack, found = [group], set[int]()
        while stack:
            for other in self.before[stack.pop()] - found:
                found.add(other)
                stack.append(other)
        return found


def fuse_tiny(
    groups: Groups,
    readings: Mapping[fx.Node, Reading],
    parameter_elements: Callable[[fx.Node], int],
    flag: Callable[[fx.Node], bool],
) -> Groups:
    """Join groups that compute next to nothing to a neighbour.

    A tiny group joins its only producer if that feeds nothing else; a residual addition joins the branch it closes;
    else a tiny group joins its only consumer. Groups that differ in `flag` are never joined.

    Args:
        groups: in topological order.
        readings: of every node; tiny is without matrix product, and with at most two parameter elements per
            element of output (an embedding is not tiny, a layer norm is).
        parameter_elements: elements of a node's own parameters.
        flag: true for nodes that need the whole mini-batch.
    """
    links = _link(groups)
    flags = {number: any(map(flag, group)) for number, group in enumerate(groups)}

    def tiny(number: int) -> bool:
        nodes = links.members[number]
        work = sum(readings[node].flops for node in nodes)
        return not work and sum(map(parameter_elements, nodes)) <= 2 * max(readings[node].elements for node in nodes)

    changed = True
    while changed:
        changed = False
        for number in sorted(links.members):
            if number in links.members and tiny(number):
                target = _partner(number, links, flags)
                if target is not None:
                    links.merge(number, target)
                    changed = True
    order = {node: index for index, node in enumerate(node for group in groups for node in group)}
    merged = [tuple(sorted(members, key=order.__getitem__)) for members in links.members.values()]
    return _without_cycles([n for g in groups for n in g], {node: group[0] for group in merged for node in group})


def _link(groups: Groups) -> _Links:
    number = {node: index for index, group in enumerate(groups) for node in group}
    links = _Links(
        members={index: list(group) for index, group in enumerate(groups)},
        before={index: set() for index in range(len(groups))},
        after={index: set() for index in range(len(groups))},
    )
    for node, here in number.items():
        for other in node.all_input_nodes:
            there = number.get(other, here)
            if there != here:
                links.before[here].add(there)
                links.after[there].add(here)
    return links


def _partner(number: int, links: _Links, flags: Mapping[int, bool]) -> int | None:
    before, after = links.before[number], links.after[number]
    ends = any(node.op == "output" for node in links.members[number])
    for producer in sorted(before, reverse=True):
        alone = links.after[producer] == {number} and flags[producer] == flags[number]
        if alone and (len(before) == 1 or (not ends and before - {producer} <= links.ancestors(producer))):
            return producer
    if len(after) == 1:
        (consumer,) = after
        gathers = any(node.op == "output" for node in links.members[consumer]) and len(links.before[consumer]) > 1
        if flags[consumer] == flags[number] and not gathers:
            return consumer
    return None
