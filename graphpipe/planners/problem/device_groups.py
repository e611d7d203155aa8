"""A cluster whose devices are groups of devices that share replicas, so that every search can plan for it.

node 0   0 1 2 3    groups of 2    (0 1) (2 3)        A stage on 2 groups has 2 replicas, each shared by 2 devices.
node 1   4 5 6 7                   (4 5) (6 7)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from graphpipe.cluster import Cluster
from graphpipe.cluster.device import Device, HostMemory, Link, PairLink
from graphpipe.costs import CostModel
from graphpipe.costs.ranks.rank_costs import rank_costs
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class DeviceGroups:
    """Groups of equally many devices, each of one node and one type."""

    cluster: Cluster
    """Of the devices."""
    members: tuple[tuple[int, ...], ...]
    """The devices of each group."""

    @staticmethod
    def of(cluster: Cluster, ranks: int) -> "DeviceGroups":
        """Return groups of so many devices, near ones together. Devices that are left over are in none."""
        order = (0,) if len(cluster.devices) == 1 else cluster.link_levels.near_first
        alike: dict[tuple[str, str], list[int]] = {}
        for device in order:
            here = cluster.devices[device]
            alike.setdefault((here.node, here.type), []).append(device)
        groups = (
            tuple(some[start : start + ranks])
            for some in alike.values()
            for start in range(0, len(some) - ranks + 1, ranks)
        )
        return DeviceGroups(cluster, tuple(sorted(groups)))

    @property
    def ranks(self) -> int:
        """The number of devices in a group."""
        return len(self.members[0])

    def problem(self, problem: Problem) -> Problem:
        """Return a problem with a device for each group, and the costs that each device of a group has."""
        costs = rank_costs(CostModel.of(problem.graph, problem.costs, self.cluster), self.members)
        return replace(problem, graph=costs.graph, costs=costs.table, cluster=self._as_devices())

    def expanded(self, plan: Plan, problem: Problem) -> Plan:
        """Return a plan of groups as the plan of their devices.

        Args:
            plan: of the problem that `problem` returned.
            problem: of the devices.
        """
        stages = tuple(
            replace(
                stage,
                devices=self._devices(stage.devices),
                offload_to=self._devices(stage.offload_to),
                tensor=self.ranks,
            )
            for stage in plan.stages
        )
        own = {"graph": problem.graph, "costs": problem.costs, "cluster": self.cluster}
        return replace(plan, stages=stages, prediction=None, **own)

    def _devices(self, groups: Sequence[int]) -> tuple[int, ...]:
        return tuple(device for group in groups for device in self.members[group])

    def _as_devices(self) -> Cluster:
        cluster, firsts = self.cluster, [members[0] for members in self.members]
        names = [cluster.devices[first].name for first in firsts]
        grouped = cluster.only(names)  # a group sends and receives as one device does, each member over its own port
        cores = cluster.cores_per_node
        return replace(
            grouped,
            name=f"{cluster.name} in groups of {self.ranks}",
            devices=tuple(self._as_device(cluster.devices[first]) for first in firsts),
            pair_links=tuple(self._pair_links()),
            cores_per_node=None if cores is None else max(1, cores // self.ranks),
            host_memory=tuple(
                HostMemory(node=each.node, bytes=each.bytes / self.ranks) for each in grouped.host_memory
            ),
        )

    def _as_device(self, first: Device) -> Device:
        return replace(first, name=f"{first.name}+{self.ranks - 1}")

    def _pair_links(self) -> list[PairLink]:
        if not self.cluster.pair_links:
            return []
        links: list[PairLink] = []
        for one, other in combinations(self.members, 2):
            pairs = [(here, there, self.cluster.link(here, there)) for here, there in zip(one, other, strict=True)]
            slowest = min((link for *_, link in pairs if link is not None), key=_speed)
            if slowest != self.cluster.level(one[0], other[0]).link:
                ends = [self._as_device(self.cluster.devices[members[0]]).name for members in (one, other)]
                links.append(PairLink(first=ends[0], second=ends[1], link=slowest))
        return links


def _speed(link: Link) -> tuple[float, float]:
    return link.bandwidth_bytes_per_second, -link.latency_seconds
