"""The links of a cluster as a search sees them: groups of near devices, and the bandwidths worth assuming."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.cluster.device import Link

_MOST_BANDWIDTHS = 3


@dataclass(frozen=True, slots=True)
class LinkLevels:
    """Groups of devices, and what a message between two stages may be expected to travel over.

    A group is a set of devices that fast links connect. What counts as fast is everything above the largest gap, as a
    ratio, between two bandwidths of the cluster. A cluster of nodes has one group per node.

        4 nodes of 2 devices       groups 0 0 1 1 2 2 3 3       bandwidths (between nodes,)
        a ring of 4 fast links     groups 0 0 0 0               bandwidths (mean, slow, fast)
    """

    groups: tuple[int, ...]
    """The group of each device, numbered by its first device."""
    bandwidths: tuple[float, ...]
    """Bytes per second. One if all links between groups are equal, and all links within them. Otherwise the harmonic
    mean over all pairs of devices comes first, and then others that the links of a good placement may have."""

    @property
    def regular(self) -> bool:
        """Whether two devices of a group may be exchanged without changing a link."""
        return len(self.bandwidths) == 1

    @property
    def near_first(self) -> tuple[int, ...]:
        """All devices, group after group."""
        return tuple(sorted(range(len(self.groups)), key=lambda device: (self.groups[device], device)))

    @staticmethod
    def of_nodes(nodes: Sequence[str], intra_node: Link, inter_node: Link) -> "LinkLevels":
        """Return the levels of nodes that are joined by equal links."""
        names = list(dict.fromkeys(nodes))
        far = inter_node if len(names) > 1 else intra_node
        return LinkLevels(tuple(map(names.index, nodes)), (far.bandwidth_bytes_per_second,))

    @staticmethod
    def of_pairs(devices: int, link: Callable[[int, int], Link]) -> "LinkLevels":
        """Return the levels of links that may differ from pair to pair.

        Args:
            devices: their number, at least 2.
            link: returns the link between two of them.
        """
        known: dict[Link, int] = {}
        kinds = np.full((devices, devices), -1)
        for first in range(devices):
            for second in range(first):
                kinds[first, second] = kinds[second, first] = known.setdefault(link(first, second), len(known))
        speeds = np.array([each.bandwidth_bytes_per_second for each in known])
        apart = ~np.eye(devices, dtype=bool)
        groups = _connected(apart & (speeds[kinds] >= _fast(speeds)))
        together = groups[:, None] == groups[None, :]
        between = np.unique(kinds[~together])
        if len(np.unique(kinds[together & apart])) <= 1 and len(between) <= 1:
            far = speeds[between[0]] if len(between) else speeds[0]
            return LinkLevels(tuple(groups.tolist()), (float(far),))
        mean = 1.0 / float(np.mean(1.0 / speeds[kinds[apart]]))
        distinct = np.unique(speeds).tolist()
        others = distinct if len(distinct) <= _MOST_BANDWIDTHS else [distinct[0], distinct[-1]]
        return LinkLevels(tuple(groups.tolist()), tuple(dict.fromkeys((mean, *others))))


def _fast(speeds: NDArray[np.float64]) -> float:
    """Return the least bandwidth above the largest gap; the only bandwidth if there is one."""
    distinct = np.unique(speeds)
    if len(distinct) == 1:
        return float(distinct[0])
    return float(distinct[1 + int(np.argmax(distinct[1:] / distinct[:-1]))])


def _connected(near: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the number of each device's component, numbered by its first device."""
    groups = np.full(len(near), -1)
    for first in range(len(near)):
        if groups[first] < 0:
            reached = np.arange(len(near)) == first
            while (wider := reached | near[reached].any(axis=0)).sum() > reached.sum():
                reached = wider
            groups[reached] = groups.max() + 1
    return groups
