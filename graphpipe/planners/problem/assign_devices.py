"""Assign devices to stages: neighbouring stages near each other, replicas in one group of near devices if they fit."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphpipe.cluster import Cluster
from graphpipe.planners.problem.limits import FEW, WORTH

Edges = Sequence[tuple[int, int, float]]
"""(source, target, bytes per sample) between stages."""


def _alike(_: int) -> float:
    return 1.0


def place(
    cluster: Cluster,
    degrees: Sequence[int],
    edges: Edges,
    types: Sequence[str] | None = None,
    summed_bytes: Callable[[int], float] = _alike,
) -> list[tuple[int, ...]]:
    """Return the devices of every stage, in the order of `degrees` (a topological order of the stages).

    Greedy: put each stage into the group (`LinkLevels`) with whose stages it exchanges the most bytes. Of equal groups
    take the one with the fewest free devices, so that later, larger stages find a whole group. A stage larger than
    every free group is spread over several. If links differ within groups, take the devices with the fastest links to
    the stages that it exchanges bytes with, and then to each other.

    A stage that fits into a group may be spread because of the stages before it. Then a few stages, spread ones and
    those with the least to sum, choose after all others, if all replicas then sum their gradients in less time.

    Args:
        cluster: with at least `sum(degrees)` devices.
        degrees: data-parallel degree of each stage.
        edges: between the stages.
        types: the device type of each stage; None: any.
        summed_bytes: returns the bytes of gradients that the replicas of a stage sum.
    """
    placement = _Placement.of(cluster, degrees, edges, types)
    order = list(range(len(degrees)))
    best = placement.in_order(order)
    spread = [placement.is_spread(team) for team in best]
    if not any(spread):
        return best
    sums = [2 * (degree - 1) / degree * summed_bytes(stage) for stage, degree in enumerate(degrees)]
    seconds = placement.sum_seconds(best, sums)
    several = [stage for stage in order if degrees[stage] > 1]
    for stage in sorted(several, key=lambda stage: (not spread[stage], sums[stage]))[:FEW]:
        later = [*(other for other in order if other != stage), stage]
        placed = placement.in_order(later)
        if (trial := placement.sum_seconds(placed, sums)) * WORTH < seconds:
            best, seconds, order = placed, trial, later
    return best


@dataclass(frozen=True, slots=True)
class _Placement:
    """Places stages one after the other."""

    cluster: Cluster
    degrees: Sequence[int]
    partners: Sequence[Mapping[int, float]]
    """The bytes per sample that each stage exchanges with others."""
    types: Sequence[str] | None

    @staticmethod
    def of(cluster: Cluster, degrees: Sequence[int], edges: Edges, types: Sequence[str] | None) -> "_Placement":
        partners: list[dict[int, float]] = [{} for _ in degrees]
        for source, target, count in edges:
            partners[source][target] = partners[target][source] = count
        return _Placement(cluster, degrees, partners, types)

    def in_order(self, order: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the devices of every stage, if stages choose theirs in this order."""
        types, groups = self.types, self.cluster.link_levels.groups
        free_devices: dict[str, dict[int, list[int]]] = {}  # by type, then group
        for position, device in enumerate(self.cluster.devices):
            by_group = free_devices.setdefault(device.type if types else "", {})
            by_group.setdefault(groups[position], []).append(position)
        placed: list[tuple[int, ...]] = [()] * len(order)
        for stage in order:
            # What a stage exchanges with those placed later is not known yet.
            partners = {
                device: count / len(placed[other])
                for other, count in self.partners[stage].items()
                for device in placed[other]
            }
            placed[stage] = self._taken(free_devices[types[stage] if types else ""], self.degrees[stage], partners)
        return placed

    def _taken(self, free: dict[int, list[int]], degree: int, partners: Mapping[int, float]) -> tuple[int, ...]:
        """Take free devices for a stage.

        Args:
            free: by group.
            degree: their number.
            partners: the bytes per sample that the stage exchanges with devices that are taken.
        """
        levels, exchanged = self.cluster.link_levels, dict[int, float]()
        for device, count in partners.items():
            exchanged[levels.groups[device]] = exchanged.get(levels.groups[device], 0.0) + count
        large_enough = [group for group, devices in free.items() if len(devices) >= degree]
        if large_enough:
            groups = [max(large_enough, key=lambda group: (exchanged.get(group, 0.0), -len(free[group])))]
        else:
            groups = sorted(free, key=lambda group: (-exchanged.get(group, 0.0), -len(free[group])))
        taken: list[int] = []
        for group in groups:
            for _ in range(min(degree - len(taken), len(free[group]))):
                near = free[group][0] if levels.regular else _nearest(self.cluster, free[group], partners, taken)
                free[group].remove(near)
                taken.append(near)
        return tuple(sorted(taken))

    def is_spread(self, team: tuple[int, ...]) -> bool:
        """Return whether devices are of several groups, although there is a group of as many devices."""
        groups = self.cluster.link_levels.groups
        return len({groups[device] for device in team}) > 1 and len(team) <= max(Counter(groups).values())

    def sum_seconds(self, placed: Sequence[tuple[int, ...]], sums: Sequence[float]) -> float:
        """Return the seconds in which the replicas of all stages sum gradients, one stage after the other.

        Args:
            placed: the devices of every stage.
            sums: the bytes that pass each link of a stage's ring.
        """
        links = (self.cluster.slowest_link(team) if len(team) > 1 else None for team in placed)
        return sum(
            count / link.bandwidth_bytes_per_second for link, count in zip(links, sums, strict=True) if link is not None
        )


def _nearest(cluster: Cluster, free: Sequence[int], partners: Mapping[int, float], taken: Sequence[int]) -> int:
    def seconds(device: int) -> tuple[float, float]:
        messages = sum(count * cluster.seconds_per_byte(device, other) for other, count in partners.items())
        return messages, sum(cluster.seconds_per_byte(device, other) for other in taken)

    return min(free, key=seconds)
