"""Assign devices to stages: neighbouring stages near each other, replicas on one node if they fit."""

from collections.abc import Sequence

from graphpipe.cluster import Cluster


def place(
    cluster: Cluster,
    degrees: Sequence[int],
    edges: Sequence[tuple[int, int, float]],
    types: Sequence[str] | None = None,
) -> list[tuple[int, ...]]:
    """Return the devices of every stage, in the order of `degrees` (a topological order of the stages).

    Greedy: put each stage on the node with whose stages it exchanges the most bytes. Of equal nodes take the one with
    the fewest free devices, so that later, larger stages find a whole node. A stage larger than every free node is
    spread over several nodes.

    Args:
        cluster: with at least `sum(degrees)` devices.
        degrees: data-parallel degree of each stage.
        edges: (source, target, bytes per sample) between stages.
        types: the device type of each stage; None: any.
    """
    free_devices: dict[str, dict[str, list[int]]] = {}  # by type, then node
    for position, device in enumerate(cluster.devices):
        free_devices.setdefault(device.type if types else "", {}).setdefault(device.node, []).append(position)
    homes: list[dict[str, int]] = []
    placed: list[tuple[int, ...]] = []
    for stage, degree in enumerate(degrees):
        exchanged, free = _exchanged(stage, edges, homes), free_devices[types[stage] if types else ""]
        large_enough = [node for node, devices in free.items() if len(devices) >= degree]
        if large_enough:
            nodes = [max(large_enough, key=lambda node: (exchanged.get(node, 0.0), -len(free[node])))]
        else:
            nodes = sorted(free, key=lambda node: (-exchanged.get(node, 0.0), -len(free[node])))
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


def _exchanged(
    stage: int, edges: Sequence[tuple[int, int, float]], homes: Sequence[dict[str, int]]
) -> dict[str, float]:
    """Return the bytes per sample that the stage exchanges with the stages on each node."""
    exchanged: dict[str, float] = {}
    for source, target, count in edges:
        other = source if target == stage else target if source == stage else stage
        if other < len(homes) and other != stage:
            total = sum(homes[other].values())
            for node, share in homes[other].items():
                exchanged[node] = exchanged.get(node, 0.0) + count * share / total
    return exchanged
