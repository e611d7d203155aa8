"""The cluster: links between devices, and refused inputs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster, Device, DeviceType, Link, PairLink
from graphpipe.cluster.device import HOST_BANDWIDTH
from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import digest, from_body, to_body

NEAR = Link(latency_seconds=1.0, bandwidth_bytes_per_second=100.0)
FAR = Link(latency_seconds=10.0, bandwidth_bytes_per_second=10.0)
ODD = Link(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
KIND = DeviceType(
    name="gpu",
    memory_bytes=8.0,
    peak_flops_per_second=4.0,
    memory_bytes_per_second=2.0,
    launch_seconds=0.0,
    half_peak_flops=0.0,
)
CLUSTER = Cluster(
    name="test",
    device_types=(KIND,),
    devices=tuple(Device(name=name, type="gpu", node=name[0]) for name in ("a0", "a1", "b0", "b1")),
    intra_node=NEAR,
    inter_node=FAR,
    pair_links=(PairLink(first="b1", second="a0", link=ODD),),
)


def test_a_message_takes_latency_and_bytes_over_bandwidth_and_zero_bytes_take_zero() -> None:
    assert FAR.seconds(50) == 15
    assert FAR.seconds(0) == 0


def test_links_by_level_and_by_pair_both_ways() -> None:
    assert CLUSTER.link(0, 1) is NEAR
    assert CLUSTER.link(1, 2) is FAR
    assert CLUSTER.link(0, 3) is CLUSTER.link(3, 0) is ODD
    assert CLUSTER.link(2, 2) is None


def test_the_slowest_link_of_a_ring() -> None:
    assert CLUSTER.slowest_link((2,)) is None
    assert CLUSTER.slowest_link((0, 1)) is NEAR
    assert CLUSTER.slowest_link((1, 2, 3)) is FAR
    assert CLUSTER.slowest_link((0, 1, 2, 3)) is ODD


def test_a_cluster_restored_from_json_has_the_same_fingerprint() -> None:
    again = from_body(Cluster, to_body(CLUSTER), "here")
    assert again == CLUSTER
    assert again.fingerprint == CLUSTER.fingerprint != replace(CLUSTER, overlap=False).fingerprint
    assert CLUSTER.fingerprint != replace(CLUSTER, duplex=True).fingerprint


def test_the_default_of_a_newer_field_is_left_out_of_the_fingerprint() -> None:
    older = {field: value for field, value in to_body(CLUSTER).items() if field not in ("duplex", "host_memory")}
    for kind in older["device_types"]:
        assert kind.pop("host_bandwidth_bytes_per_second") == HOST_BANDWIDTH
    for link in (older["intra_node"], older["inter_node"], *(pair["link"] for pair in older["pair_links"])):
        assert link.pop("processor_seconds_per_byte") == 0
    assert digest(older) == CLUSTER.fingerprint


def test_a_cluster_that_shares_nothing_has_the_body_that_it_had_before_there_were_ports() -> None:
    shared = replace(CLUSTER, inter_node=replace(FAR, shared=True))
    assert "shared" not in to_body(CLUSTER)["inter_node"]
    assert to_body(shared)["inter_node"]["shared"] is True
    assert from_body(Cluster, to_body(shared), "here") == shared
    assert shared.fingerprint != CLUSTER.fingerprint


def test_messages_share_ports_where_their_level_says_so() -> None:
    shared = replace(CLUSTER, inter_node=replace(FAR, shared=True))
    assert (shared.port(0, 1), shared.port(1, 2), shared.port(0, 3), shared.port(1, 1)) == ("", "inter_node", "", "")
    assert shared.ring_port((1, 2, 3)) == "inter_node"
    assert shared.ring_port((0, 1)) == shared.ring_port((0, 1, 2, 3)) == shared.ring_port((2,)) == ""
    assert shared.shares_ports
    assert not shared.only(["a0", "a1"]).shares_ports


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"devices": ()}, "cluster 'test': the cluster has no devices"),
        ({"devices": CLUSTER.devices[:1] * 2}, "2 devices are named 'a0'"),
        ({"device_types": (KIND, KIND)}, "2 device types are named 'gpu'"),
        ({"device_types": ()}, "device 'a0' has unknown type 'gpu'"),
        ({"device_types": (replace(KIND, memory_bytes=0),)}, "device type 'gpu', memory_bytes: is 0, must be positive"),
        ({"device_types": (replace(KIND, launch_seconds=-1),)}, "launch_seconds: is -1, must be finite and not neg"),
        ({"intra_node": replace(NEAR, bandwidth_bytes_per_second=0)}, "intra_node, bandwidth_bytes_per_second: is 0"),
        ({"inter_node": replace(FAR, latency_seconds=math.nan)}, "inter_node, latency_seconds: is nan"),
        ({"pair_links": (PairLink(first="a0", second="x", link=ODD),)}, "a pair link names unknown device 'x'"),
        ({"pair_links": (PairLink(first="a0", second="a0", link=ODD),)}, "a pair link joins 'a0' to itself"),
        (
            {"pair_links": (PairLink(first="a0", second="b0", link=replace(ODD, shared=True)),)},
            "a link between two devices cannot be shared",
        ),
        ({"cores_per_node": 0}, "cores_per_node: is 0, must be positive"),
    ],
)
def test_an_invalid_cluster_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        replace(CLUSTER, **change)  # pyright: ignore[reportArgumentType]


def test_clusters_are_made_from_presets_and_files(tmp_path: Path) -> None:
    assert len(Cluster.preset("local:3").devices) == 3
    with pytest.raises(InvalidInput, match="cannot read"):
        Cluster.load(tmp_path / "missing.toml")


def test_the_links_between_two_groups_are_those_of_their_pairs() -> None:
    for sources, targets in (((0,), (1,)), ((0, 1), (1, 2)), ((0, 1, 2), (0, 1, 2))):
        pairs = {CLUSTER.link(one, other) for one in sources for other in targets}
        assert CLUSTER.links(sources, targets) == CLUSTER.links(sources, targets) == pairs
