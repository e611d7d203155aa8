"""A link that was measured between two ranks, and a cluster with the measured figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import Link
from graphpipe.cluster.levels import BETWEEN, INSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The link between two ranks."""

    first: int
    second: int
    same_host: bool
    link: Link


def with_links(cluster: Cluster, measured: Sequence[MeasuredLink]) -> Cluster:
    """Return the cluster with measured links: of each level, the median of each figure over the pairs of the level.

    A level without a measurement keeps its figures, except that the links of a single node are all alike. Links of
    single pairs stay, and so does whether the messages of a device share a port, because pairs are measured one by one.
    """
    links: dict[str, list[Link]] = {}
    for each in measured:
        links.setdefault(_level(cluster, each), []).append(each.link)
    shared = {level.name: level.link.shared for level in cluster.every_level}
    medians = {level: replace(_median(known), shared=shared[level]) for level, known in links.items()}
    if len({device.node for device in cluster.devices}) == 1:
        medians = {BETWEEN: medians.get(INSIDE, cluster.intra_node)} | medians
    return cluster.with_level_links(medians)


def _level(cluster: Cluster, measured: MeasuredLink) -> str:
    # Where ranks started decides what is inside a host, and the cluster which hosts are near each other.
    if measured.same_host:
        return INSIDE
    known = max(measured.first, measured.second) < len(cluster.devices)
    level = cluster.level(measured.first, measured.second).name if known else BETWEEN
    return BETWEEN if level == INSIDE else level


def _median(links: Sequence[Link]) -> Link:
    return Link(
        latency_seconds=median(link.latency_seconds for link in links),
        bandwidth_bytes_per_second=median(link.bandwidth_bytes_per_second for link in links),
        processor_seconds=median(link.processor_seconds for link in links),
        processor_seconds_per_byte=median(link.processor_seconds_per_byte for link in links),
    )
