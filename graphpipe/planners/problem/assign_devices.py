"""Which devices a stage gets: neighbouring stages near each other, replicas on one node where they fit."""

from collections.abc import Sequence

from graphpipe.cluster import Cluster


def place(
    cluster: Cluster,
    degrees: Sequence[int],
    edges: Sequence[tuple[int, int, float]],
    types: Sequence[str] | None = None,
) -> list[tuple[int, ...]]:
    """Return the devices of every stage, in the order of `degrees` (a topological order of the stages).

    Greedy: a stage goes to the node that holds most of the bytes it exchanges with stages already placed; among
    equals to the one with the least room, so that large stages later find a whole node. A stage that fits no node
    takes the devices that are left, in order.

    Args:
        cluster: its devices; at least `sum(degrees)` of them.
        degrees: data-parallel degree of each stage.
        edges: (source, target, bytes per sample) between stages.
        types: the device type that each stage is to have; None: any.
    """
    rooms: dict[str, dict[str, list[int]]] = {}  # by type, then node
    for position, device in enumerate(cluster.devices):
        rooms.setdefault(device.type if types else "", {}).setdefault(device.node, []).append(position)
    homes: list[dict[str, int]] = []
    placed: list[tuple[int, ...]] = []
    for stage, degree in enumerate(degrees):
        pull, free = _pull(stage, edges, homes), rooms[types[stage] if types else ""]
        roomy = [node for node, devices in free.items() if len(devices) >= degree]
        if roomy:
            nodes = [max(roomy, key=lambda node: (pull.get(node, 0.0), -len(free[node])))]
        else:
            nodes = sorted(free, key=lambda node: (-pull.get(node, 0.0), -len(free[node])))
        taken: list[int] = []
        home: dict[str, int] = {}
        for node in nodes:
            share = free[node][: degree - len(taken)]
            del free[node][: len(share)]
            taken += share
            home[node] = len(share)
        placed.append(tuple(sorted(taken)))
        homes.append(home)
    return placed


def _pull(stage: int, edges: Sequence[tuple[int, int, float]], homes: Sequence[dict[str, int]]) -> dict[str, float]:
    """Bytes per sample that the stage exchanges with stages on each node."""
    pull: dict[str, float] = {}
    for source, target, count in edges:
        other = source if target == stage else target if source == stage else stage
        if other < len(homes) and other != stage:
            total = sum(homes[other].values())
            for node, share in homes[other].items():
                pull[node] = pull.get(node, 0.0) + count * share / total
    return pull
