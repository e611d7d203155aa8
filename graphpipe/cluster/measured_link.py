"""A link that was measured between two ranks, and a cluster with the measured figures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The link between two ranks."""

    first: int
    second: int
    same_host: bool
    link: Link


def with_links(cluster: Cluster, measured: Sequence[MeasuredLink]) -> Cluster:
    """Return the cluster with measured links: of both levels, the median of each figure over the pairs of the level.

    A level without a measurement keeps its figures, except that the links of a single node are all alike. Links of
    single pairs stay.
    """
    inside = [each.link for each in measured if each.same_host]
    between = [each.link for each in measured if not each.same_host]
    intra = _median(inside) if inside else cluster.intra_node
    one_node = len({device.node for device in cluster.devices}) == 1
    inter = _median(between) if between else intra if one_node else cluster.inter_node
    return replace(cluster, intra_node=intra, inter_node=inter)


def _median(links: Sequence[Link]) -> Link:
    return Link(**{each.name: median(getattr(link, each.name) for link in links) for each in fields(Link)})
