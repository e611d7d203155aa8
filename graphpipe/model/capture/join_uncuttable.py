"""The finest groups of nodes between which a plan may cut."""

from collections.abc import Collection, Sequence

from torch import fx, nn

from graphpipe.model.capture.crossing_values import CrossingValues
from graphpipe.model.capture.groups import Groups, acyclic_groups


def join_uncuttable(graph: fx.Graph, values: CrossingValues, stateful: Collection[str]) -> Groups:
    """Return the finest groups that form no cycle and pass only crossing values to each other.

    Args:
        graph: of a module.
        values: of the graph.
        stateful: the submodules whose buffers a call may change.

    Duplicated nodes are in no group. A node joins
    1. the readers of its value, if that value may not cross;
    2. the call that writes into its value, because the value is complete only after that call;
    3. everything that reads the buffer into which it writes, because no other stage sees the new value;
    4. the last value that it reads, or else the first node, if it only checks values;
    5. the other calls of its submodule, if that has buffers: statistics of two stages would differ;
    6. all groups on a cycle with its own.
    """
    nodes = [node for node in graph.nodes if node not in values.duplicated]
    groups = _DisjointSets(nodes)
    for node in nodes:
        if node not in values.crossing:
            for reader in node.users:
                if reader not in values.duplicated:
                    groups.join(reader, node)
    for node in nodes:
        if "written_by" in node.meta:
            groups.join(_writer(node), node)
        if "writes" in node.meta:
            for reader in _readers(node.args[0], values) or nodes[:1]:
                groups.join(reader, node)
    position = {node: number for number, node in enumerate(nodes)}
    first = next(node for node in nodes if "checks" not in node.meta)
    for node in nodes:
        if "checks" in node.meta:
            groups.join(max(values.read_by(node), key=position.__getitem__, default=first), node)
    calls: dict[str, fx.Node] = {}
    for node in nodes:
        if node.op == "call_module" and str(node.target) in stateful:
            groups.join(calls.setdefault(str(node.target), node), node)
    return acyclic_groups(nodes, {node: groups.find(node) for node in nodes}, values.read_by)


def stateful(module: nn.Module) -> frozenset[str]:
    """Return the paths of the submodules with buffers that a call may change, such as running statistics."""
    return frozenset(
        path for path, part in module.named_modules() if any(buffer.is_floating_point() for buffer in part.buffers())
    )


def _writer(copy: fx.Node) -> fx.Node:
    return next(reader for reader in copy.users if reader.target == copy.meta["written_by"])


def _readers(buffer: fx.Node, values: CrossingValues) -> list[fx.Node]:
    # The nodes of groups that read a buffer, directly or through duplicated nodes.
    stack, found = [buffer], dict[fx.Node, None]()
    while stack:
        for reader in stack.pop().users:
            if reader in values.duplicated:
                stack.append(reader)
            elif "writes" not in reader.meta:
                found[reader] = None
    return [*found]


class _DisjointSets:
    # Union-find: every set has a root, and `find` follows parents to it.
    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.parent = {node: node for node in nodes}

    def find(self, node: fx.Node) -> fx.Node:
        while self.parent[node] is not node:
            node = self.parent[node]
        return node

    def join(self, node: fx.Node, other: fx.Node) -> None:
        self.parent[self.find(node)] = self.find(other)


def join_output(groups: Groups) -> Groups:
    """Join the output node to the group that computes the whole output; if several do, it stays an own group."""
    (end,) = (group for group in groups if any(node.op == "output" for node in group))
    group_of = {node: group for group in groups for node in group}
    producers = {group_of[value] for value in end[-1].all_input_nodes if value in group_of}
    if len(end) > 1 or len(producers) != 1:
        return groups
    (producer,) = producers
    return tuple((*group, *end) if group is producer else group for group in groups if group is not end)
