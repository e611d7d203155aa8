"""Cluster files: read with units, refused by key."""

from pathlib import Path
from typing import Any

import pytest

from graphpipe.cluster import Cluster, Device, DeviceType, Link, PairLink, cluster_file
from graphpipe.cluster.cluster_text import cluster_text
from graphpipe.errors import InvalidInput

TEXT = """
name = "mine"
overlap = false
cores_per_node = 6

[intra_node]
latency = "5 us"
bandwidth = "50 GB/s"

[inter_node]
latency = 0
bandwidth = "100 Gb/s"

[device_types.v100]
memory = "16 GB"
peak = "15.7 TFLOP/s"
peak_fp8 = "31 TFLOP/s"
memory_bandwidth = "900 GB/s"
launch = "4 us"
half_peak_flops = 2e9

[device_types.small]
memory = 4e9
peak = "1 TFLOP/s"
memory_bandwidth = "100 GB/s"

[[nodes]]
name = "n"
devices = { v100 = 2, small = 1 }

[[nodes]]
name = "m"
devices = { small = 1 }
count = 2

[[pair_links]]
first = "n/v100-0"
second = "n/v100-1"
latency = "2 us"
bandwidth = "25 GB/s"
processor = "30 us"
processor_bandwidth = "2.5 GB/s"
"""


def near(value: float) -> Any:
    """Return an approximate value that a typed field accepts."""
    return pytest.approx(value)


def load(tmp_path: Path, text: str) -> Cluster:
    (tmp_path / "mine.toml").write_text(text)
    return Cluster.load(tmp_path / "mine.toml")


def test_everything_is_read_in_base_units(tmp_path: Path) -> None:
    cluster = load(tmp_path, TEXT)
    assert (cluster.name, cluster.overlap, cluster.cores_per_node) == ("mine", False, 6)
    assert cluster.intra_node == Link(latency_seconds=near(5e-6), bandwidth_bytes_per_second=50e9)
    assert cluster.inter_node == Link(latency_seconds=0, bandwidth_bytes_per_second=12.5e9)
    assert cluster.types["v100"] == DeviceType(
        name="v100",
        memory_bytes=16e9,
        peak_flops_per_second=15.7e12,
        memory_bytes_per_second=900e9,
        launch_seconds=near(4e-6),
        half_peak_flops=2e9,
        fp8_peak_flops_per_second=31e12,
    )
    assert cluster.devices == (
        Device(name="n/v100-0", type="v100", node="n"),
        Device(name="n/v100-1", type="v100", node="n"),
        Device(name="n/small-0", type="small", node="n"),
        Device(name="m0/small-0", type="small", node="m0"),
        Device(name="m1/small-0", type="small", node="m1"),
    )
    assert cluster.pair_links == (
        PairLink(
            first="n/v100-0",
            second="n/v100-1",
            link=Link(
                latency_seconds=near(2e-6),
                bandwidth_bytes_per_second=25e9,
                processor_seconds=near(30e-6),
                processor_seconds_per_byte=near(0.4e-9),
            ),
        ),
    )


def test_duplex_is_read_and_may_be_left_out(tmp_path: Path) -> None:
    assert load(tmp_path, TEXT.replace("overlap = false", "overlap = false\nduplex = true")).duplex
    assert not load(tmp_path, TEXT).duplex


def test_a_level_may_be_shared_by_all_messages_of_a_device(tmp_path: Path) -> None:
    shared = load(tmp_path, TEXT.replace("[intra_node]", "[intra_node]\nshared = true"))
    assert [level.link.shared for level in shared.every_level] == [True, False]
    assert load(tmp_path, cluster_text(shared)) == shared
    assert not load(tmp_path, TEXT).shares_ports
    with pytest.raises(InvalidInput, match=r"pair_links\[0\]: unknown key 'shared'"):
        load(tmp_path, TEXT.replace("[[pair_links]]", "[[pair_links]]\nshared = true"))


def test_launch_and_saturation_have_documented_defaults(tmp_path: Path) -> None:
    small = load(tmp_path, TEXT).types["small"]
    assert (small.launch_seconds, small.half_peak_flops) == (5e-6, pytest.approx(64e6))


def test_name_overlap_and_pair_links_may_be_left_out(tmp_path: Path) -> None:
    text = TEXT.replace('name = "mine"\noverlap = false\ncores_per_node = 6\n', "").split("[[pair_links]]")[0]
    cluster = load(tmp_path, text)
    assert (cluster.name, cluster.overlap, cluster.cores_per_node, cluster.pair_links) == ("mine", True, None, ())


def test_the_file_in_the_docstring_is_valid(tmp_path: Path) -> None:
    assert cluster_file.__doc__ is not None
    cluster = load(tmp_path, cluster_file.__doc__.split("\n", 1)[1])
    assert len(cluster.devices) == 4 + 8 * 2


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("overlap", "overlop", r"mine\.toml: unknown key 'overlop'. Did you mean 'overlap'"),
        ("memory =", "memori =", r"mine\.toml, device_types\.v100: unknown key 'memori'. Did you mean 'memory'"),
        ("v100 = 2", "v10 = 2", r"nodes\[0\]\.devices: unknown key 'v10'. Did you mean 'v100'"),
        ("v100 = 2", "v100 = 0", r"nodes\[0\]\.devices\.v100: is 0, must be from 1 to 65,536"),
        ("v100 = 2", "v100 = 1.5", r"nodes\[0\]\.devices\.v100: is 1.5, must be a whole number"),
        ("count = 2", "count = true", r"nodes\[1\]\.count: is True, must be a whole number"),
        ('"50 GB/s"', "0", r"intra_node\.bandwidth: is 0, must be positive and finite"),
        ('"30 us"', "-1", r"pair_links\[0\]\.processor: is -1, must be finite and not negative"),
        ('"50 GB/s"', "-5", r"intra_node\.bandwidth: is -5, must be positive"),
        ('"50 GB/s"', "nan", r"intra_node\.bandwidth: is nan, must be positive"),
        ('"50 GB/s"', '"50 GB"', r"intra_node\.bandwidth: 'GB' is not a unit of bytes per second"),
        ('"5 us"', '"fast"', r"intra_node\.latency: 'fast' is not a number with a unit"),
        ('"5 us"', "[5]", r"intra_node\.latency: is \[5\], must be a number, or a string such as '5 us'"),
        ('"16 GB"', '"0 GB"', r"device_types\.v100\.memory: is 0 GB, must be positive"),
        ("half_peak_flops = 2e9", 'half_peak_flops = "2 G"', r"half_peak_flops: is '2 G', must be a number without a"),
        ('latency = "5 us"\n', "", r"mine\.toml, intra_node: 'latency' is missing"),
        ("[intra_node]", "[intranode]", r"unknown key 'intranode'. Did you mean 'intra_node'"),
        ("overlap = false", "overlap = 1", r"mine\.toml, overlap: is 1, must be true or false"),
        ('first = "n/v100-0"', 'first = "n/v100-9"', r"mine\.toml, cluster 'mine': a pair link names unknown device"),
        ("count = 2", "", r"mine\.toml, cluster 'mine': 2 devices are named"),
        ("[[nodes]]", "[nodes", r"mine\.toml: not valid TOML: .*line"),
    ],
)
def test_a_bad_file_is_refused_by_its_key(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    text = TEXT.replace('name = "m"', 'name = "n"') if (old, new) == ("count = 2", "") else TEXT
    assert old in text
    with pytest.raises(InvalidInput, match=sentence):
        load(tmp_path, text.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", 'nodes = 3\ndevice_types = "x"', "nodes = [1]"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"mine\.toml"):
        load(tmp_path, text)


def test_one_node_does_not_need_a_link_between_nodes(tmp_path: Path) -> None:
    head, _, rest = TEXT.partition("[inter_node]")
    types, _, _ = rest.partition("[[nodes]]")
    body = head + types[types.index("[device_types") :]
    one, several = '[[nodes]]\nname = "n"\ndevices = { v100 = 2 }\n', '[[nodes]]\nname = "m"\ndevices = { small = 1 }\n'
    path = tmp_path / "one.toml"
    path.write_text(body + one)
    cluster = Cluster.load(path)
    assert cluster.inter_node == cluster.intra_node
    path.write_text(body + one + several)
    with pytest.raises(InvalidInput, match="'inter_node' is missing"):
        Cluster.load(path)
