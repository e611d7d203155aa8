"""The levels of a cluster's links: which level joins two devices, and what a list of levels must satisfy."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from graphpipe.cluster.device import Link, LinkLevel
from graphpipe.errors import InvalidInput

INSIDE, BETWEEN = "intra_node", "inter_node"
"""The nearest level, which joins the devices of a node, and the farthest, which joins all that nothing else joins."""


def every_level(
    nodes: Sequence[str], intra_node: Link, levels: Sequence[LinkLevel], inter_node: Link
) -> tuple[LinkLevel, ...]:
    """Return all levels, the nearest first.

    Args:
        nodes: the node of each device.
        intra_node: joins the devices of a node.
        levels: further levels between these two, the nearest first.
        inter_node: joins all nodes that no other level joins.
    """
    names = tuple(dict.fromkeys(nodes))
    inside = LinkLevel(name=INSIDE, link=intra_node, nodes=tuple((name,) for name in names))
    return (inside, *levels, LinkLevel(name=BETWEEN, link=inter_node, nodes=(names,)))


def device_groups(nodes: Sequence[str], level: LinkLevel) -> tuple[int, ...]:
    """Return the group of each device in a level. A device that is in no group has a number of its own, below 0."""
    number = {node: group for group, names in enumerate(level.nodes) for node in names}
    return tuple(number.get(node, -1 - device) for device, node in enumerate(nodes))


def levels_of(levels: Sequence[LinkLevel], nodes: Collection[str]) -> tuple[LinkLevel, ...]:
    """Return the levels without other nodes than these; without those levels that then have no group."""
    kept = [
        replace(level, nodes=tuple(near for group in level.nodes if (near := tuple(n for n in group if n in nodes))))
        for level in levels
    ]
    return tuple(level for level in kept if level.nodes)


def check_levels(levels: Sequence[LinkLevel], nodes: Collection[str], where: str) -> None:
    """Refuse levels that name unknown nodes, name a node twice, or divide a group of a nearer level.

    Args:
        levels: between the links inside a node and those between all nodes, the nearest first.
        nodes: those of the cluster.
        where: the cluster, for errors.

    Raises:
        InvalidInput: names the level and the node.
    """
    for position, level in enumerate(levels):
        at = f"{where}, level '{level.name}'"
        if level.name in (INSIDE, BETWEEN, *(other.name for other in levels[:position])):
            raise InvalidInput(f"two levels are named '{level.name}'", where=where, remedy="Give one another name.")
        named = [node for group in level.nodes for node in group]
        for node in named:
            if node not in nodes:
                raise InvalidInput(f"names unknown node '{node}'", where=at)
            if named.count(node) > 1:
                raise InvalidInput(f"names node '{node}' {named.count(node)} times", where=at)
        for nearer in levels[:position]:
            _check_nested(nearer, level, at)


def _check_nested(nearer: LinkLevel, level: LinkLevel, where: str) -> None:
    for near in nearer.nodes:
        for group in level.nodes:
            inside, outside = [node for node in near if node in group], [node for node in near if node not in group]
            if inside and outside:
                raise InvalidInput(
                    f"joins '{inside[0]}' but not '{outside[0]}', which the nearer level '{nearer.name}' joins",
                    where=where,
                    remedy="List the nearest level first, and let a farther one join whole groups of it.",
                )
