"""Clusters with measured links, and the TOML text of a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster, HostMemory, Link, PairLink
from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.cluster.measured_link import MeasuredLink, with_links

FAST, SLOW, SLOWEST = (
    Link(latency_seconds=n * 1e-5, bandwidth_bytes_per_second=1e9 / n, processor_seconds=n * 1e-4) for n in (1, 2, 9)
)


def measured(*links: Link, same_host: bool) -> list[MeasuredLink]:
    return [MeasuredLink(first=2 * n, second=2 * n + 1, same_host=same_host, link=link) for n, link in enumerate(links)]


def test_a_level_has_the_median_of_its_pairs() -> None:
    cluster = Cluster.preset("summit:2x2")
    pairs = measured(FAST, SLOWEST, SLOW, same_host=True) + measured(SLOWEST, same_host=False)
    found = with_links(cluster, pairs)
    # Pairs are measured one by one, so whether the messages of a device share a port stays as it was.
    assert (found.intra_node, found.inter_node) == (SLOW, replace(SLOWEST, shared=True))
    assert replace(found, intra_node=cluster.intra_node, inter_node=cluster.inter_node) == cluster


def test_a_level_without_a_measurement_keeps_its_link() -> None:
    cluster = Cluster.preset("summit:2x2")
    assert with_links(cluster, measured(FAST, same_host=False)).intra_node == cluster.intra_node
    assert with_links(cluster, measured(FAST, same_host=True)).inter_node == cluster.inter_node
    assert with_links(Cluster.preset("local:2"), measured(FAST, same_host=True)).inter_node == FAST


def test_a_cluster_is_read_from_its_text(tmp_path: Path) -> None:
    cluster = Cluster.preset("summit:2x3")
    first, second, *_ = (device.name for device in cluster.devices)
    cluster = replace(
        cluster,
        name='a "cluster" of \x7f \U0001f680',  # JSON and TOML escape these in other ways
        overlap=False,
        cores_per_node=4,
        intra_node=replace(SLOW, processor_seconds_per_byte=0.25e-9),
        pair_links=(PairLink(first=first, second=second, link=FAST),),
        host_memory=(HostMemory(node=cluster.devices[0].node, bytes=5e9),),
    )
    for each in (cluster, Cluster.preset("local:2")):
        (tmp_path / "cluster.toml").write_text(cluster_text(each))
        assert Cluster.load(tmp_path / "cluster.toml") == each


def test_work_is_not_negative() -> None:
    with pytest.raises(ValueError, match="processor_seconds_per_byte"):
        replace(Cluster.preset("local:2"), intra_node=replace(FAST, processor_seconds_per_byte=-1.0))
