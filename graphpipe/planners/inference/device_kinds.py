"""Kinds of devices: those that may be exchanged for each other without changing a cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from graphpipe.cluster import Cluster, Link
from graphpipe.planners.problem.limits import MANY


@dataclass(frozen=True, slots=True)
class DeviceKinds:
    """Groups of devices of one type.

    4 boards and 4 hosts, one switch        kinds (0 1 2 3) (4 5 6 7)
    2 nodes of 2 devices                    kinds (0 1) (2 3)
    """

    cluster: Cluster
    members: tuple[tuple[int, ...], ...]
    """Positions of each kind in the cluster's devices."""

    @staticmethod
    def alike(cluster: Cluster) -> "DeviceKinds":
        """Return groups of devices with the same type and the same links to all other devices."""
        kinds: list[list[int]] = []
        for device in range(len(cluster.devices)):
            for members in kinds:
                if _alike(cluster, members[0], device):
                    members.append(device)
                    break
            else:
                kinds.append([device])
        return DeviceKinds(cluster, tuple(map(tuple, kinds)))

    @staticmethod
    def by_type(cluster: Cluster) -> "DeviceKinds":
        """Return one group per device type. Links inside and between groups then only stand for the slowest."""
        types = dict.fromkeys(device.type for device in cluster.devices)
        members = (tuple(n for n, device in enumerate(cluster.devices) if device.type == kind) for kind in types)
        return DeviceKinds(cluster, tuple(members))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of devices, by kind."""
        return tuple(map(len, self.members))

    @property
    def subsets(self) -> int:
        """The number of ways to take some devices of each kind."""
        total = 1
        for count in self.counts:
            total *= count + 1
        return total

    def device_type(self, kind: int) -> str:
        """Return the type of the devices of a kind."""
        return self.cluster.devices[self.members[kind][0]].type

    def link(self, one: int, other: int) -> Link | None:
        """Return the slowest link between a device of one kind and another device; None if there is only one device."""
        pairs = [(a, b) for a in self.members[one][:MANY] for b in self.members[other] if a != b]
        links = [link for a, b in pairs if (link := self.cluster.link(a, b)) is not None]
        return min(links, key=lambda link: (link.bandwidth_bytes_per_second, -link.latency_seconds), default=None)

    def take(self, kinds: Sequence[int]) -> list[int]:
        """Return a device for each of some stages, given its kind, each device once."""
        free = [list(members) for members in self.members]
        return [free[kind].pop(0) for kind in kinds]


def _alike(cluster: Cluster, one: int, other: int) -> bool:
    if cluster.devices[one].type != cluster.devices[other].type:
        return False
    if not cluster.pair_links and cluster.devices[one].node == cluster.devices[other].node:
        return True
    rest = (device for device in range(len(cluster.devices)) if device not in (one, other))
    return all(cluster.link(one, device) == cluster.link(other, device) for device in rest)
