"""Assign devices to stages: neighbouring stages near each other, replicas in one group of near devices if they fit."""

from collections.abc import Sequence

from graphpipe.cluster import Cluster

Edges = Sequence[tuple[int, int, float]]
"""(source, target, bytes per sample) between stages."""


def place(
    cluster: Cluster, degrees: Sequence[int], edges: Edges, types: Sequence[str] | None = None
) -> list[tuple[int, ...]]:
    """Return the devices of every stage, in the order of `degrees` (a topological order of the stages).

    Greedy: put each stage into the group (`LinkLevels`) with whose stages it exchanges the most bytes. Of equal groups
    take the one with the fewest free devices, so that later, larger stages find a whole group. A stage larger than
    every free group is spread over several. If links differ within groups, take the devices with the fastest links to
    the stages that it exchanges bytes with, and then to each other.

    Args:
        cluster: with at least `sum(degrees)` devices.
        degrees: data-parallel degree of each stage.
        edges: between the stages.
        types: the device type of each stage; None: any.
    """
    levels = cluster.link_levels
    free_devices: dict[str, dict[int, list[int]]] = {}  # by type, then group
    for position, device in enumerate(cluster.devices):
        by_group = free_devices.setdefault(device.type if types else "", {})
        by_group.setdefault(levels.groups[position], []).append(position)
    placed: list[tuple[int, ...]] = []
    for stage, degree in enumerate(degrees):
        partners = _partners(stage, edges, placed)
        exchanged: dict[int, float] = {}
        for device, count in partners.items():
            exchanged[levels.groups[device]] = exchanged.get(levels.groups[device], 0.0) + count
        free = free_devices[types[stage] if types else ""]
        large_enough = [group for group, devices in free.items() if len(devices) >= degree]
        if large_enough:
            groups = [max(large_enough, key=lambda group: (exchanged.get(group, 0.0), -len(free[group])))]
        else:
            groups = sorted(free, key=lambda group: (-exchanged.get(group, 0.0), -len(free[group])))
        taken: list[int] = []
        for group in groups:
            for _ in range(min(degree - len(taken), len(free[group]))):
                near = free[group][0] if levels.regular else _nearest(cluster, free[group], partners, taken)
                free[group].remove(near)
                taken.append(near)
        placed.append(tuple(sorted(taken)))
    return placed


def _partners(stage: int, edges: Edges, placed: Sequence[tuple[int, ...]]) -> dict[int, float]:
    """Return the bytes per sample that a stage exchanges with each device that is already taken."""
    bytes_by_device: dict[int, float] = {}
    for source, target, count in edges:
        if target == stage:  # What it sends itself goes to stages that are placed later.
            for device in placed[source]:
                bytes_by_device[device] = bytes_by_device.get(device, 0.0) + count / len(placed[source])
    return bytes_by_device


def _nearest(cluster: Cluster, free: Sequence[int], partners: dict[int, float], taken: Sequence[int]) -> int:
    def seconds(device: int) -> tuple[float, float]:
        messages = sum(count * cluster.seconds_per_byte(device, other) for other, count in partners.items())
        return messages, sum(cluster.seconds_per_byte(device, other) for other in taken)

    return min(free, key=seconds)
