"""Presets: sizes and plausible figures."""

import os
from pathlib import Path

import pytest

from graphpipe.cluster import Cluster
from graphpipe.errors import InvalidInput


@pytest.mark.parametrize(
    ("spec", "nodes", "each"), [("summit:8x4", 8, 4), ("dgx-a100:2x8", 2, 8), ("dgx-h100:4x8", 4, 8), ("local:4", 1, 4)]
)
def test_sizes(spec: str, nodes: int, each: int) -> None:
    cluster = Cluster.preset(spec)
    assert cluster.name == spec
    assert len(cluster.devices) == nodes * each
    assert [len([d for d in cluster.devices if d.node == f"node{n}"]) for n in range(nodes)] == [each] * nodes
    assert cluster.overlap


@pytest.mark.parametrize(
    ("spec", "memory", "peaks"),
    [
        ("summit:1x1", 16e9, (15.7, 15.7, 125.0, 15.7)),
        ("dgx-a100:1x1", 80e9, (19.5, 312.0, 312.0, 312.0)),
        ("dgx-h100:1x1", 80e9, (67.0, 989.0, 989.0, 1979.0)),
    ],
)
def test_published_figures_of_the_devices(spec: str, memory: float, peaks: tuple[float, ...]) -> None:
    """One peak served all precisions: that of TensorFloat-32, which torch does not use by default."""
    (kind,) = Cluster.preset(spec).device_types
    assert kind.memory_bytes == memory
    assert tuple(kind.peak(precision) / 1e12 for precision in ("fp32", "bf16", "fp16", "fp8")) == peaks
    assert kind.peak(None) == kind.peak("fp32")
    assert kind.half_peak_flops / kind.peak_flops_per_second == pytest.approx(64e-6, rel=0.01)


@pytest.mark.parametrize("spec", ["summit:2x2", "dgx-a100:2x2", "dgx-h100:2x2"])
def test_memory_is_faster_than_a_node_and_a_node_than_the_network(spec: str) -> None:
    cluster = Cluster.preset(spec)
    (kind,) = cluster.device_types
    inside, between = cluster.intra_node, cluster.inter_node
    assert kind.memory_bytes_per_second > inside.bandwidth_bytes_per_second > between.bandwidth_bytes_per_second
    assert kind.launch_seconds < inside.latency_seconds < between.latency_seconds


def test_devices_share_a_port_to_a_switch_and_not_the_bricks_of_summit() -> None:
    for spec, inside in {"summit:2x4": False, "dgx-a100:2x8": True, "dgx-h100:2x8": True}.items():
        cluster = Cluster.preset(spec)
        assert (cluster.intra_node.shared, cluster.inter_node.shared) == (inside, True)
    assert not Cluster.preset("summit:1x4").shares_ports
    assert not Cluster.preset("local:4").shares_ports


def test_a_v100_reaches_two_thirds_of_its_peak_with_a_product_of_1024_cubed() -> None:
    (kind,) = Cluster.preset("summit:1x1").device_types
    work = 2 * 1024**3
    assert work / (work + kind.half_peak_flops) == pytest.approx(2 / 3, abs=0.05)


def test_local_processes_share_memory_and_cores() -> None:
    one, four = Cluster.preset("local:1"), Cluster.preset("local:4")
    assert four.device_types[0].memory_bytes * 4 == one.device_types[0].memory_bytes
    assert four.cores_per_node == os.cpu_count()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "sumit:2x4",
            "unknown cluster preset 'sumit'. Did you mean 'summit'. Known: dgx-a100, dgx-h100, local, summit",
        ),
        ("", "unknown cluster preset ''. Known"),
        ("summit:32", "'summit:32' has no size of the form summit:NODESxDEVICES, such as summit:2x4"),
        ("summit:0x4", "has no size of the form"),
        ("summit:2x4x8", "has no size of the form"),
        ("summit:2x-4", "has no size of the form"),
        ("local", "'local' has no size of the form local:PROCESSES, such as local:4"),
        ("local:2x2", "has no size of the form local:PROCESSES"),
        ("local:99999999", "has 99,999,999 devices, but the limit is 65,536"),
    ],
)
def test_an_invalid_preset_is_refused_with_the_expected_form(spec: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence.replace("?", r"\?")):
        Cluster.preset(spec)


def test_resolve_distinguishes_files_from_presets(tmp_path: Path) -> None:
    assert Cluster.resolve("summit:1x2") == Cluster.preset("summit:1x2")
    with pytest.raises(InvalidInput, match=r"missing\.toml: cannot read"):
        Cluster.resolve(str(tmp_path / "missing.toml"))
