"""Clusters from TOML files.

name = "two kinds"
overlap = true                      # optional: transfers run while a device computes
duplex = false                      # optional: if not, two devices send to each other at the same time
cores_per_node = 8                  # optional: when the devices are processes that share a node's cores

[intra_node]
latency = "5 us"
bandwidth = "50 GB/s"
processor = "0 us"                  # optional: work per message of the device at each end (CPU processes)
processor_bandwidth = "2.5 GB/s"    # optional: how fast such a device copies a message (default: without work)
shared = true                       # optional: all messages of a device share this bandwidth (default: they do not)

[inter_node]                        # optional with one node
latency = "15 us"
bandwidth = "100 Gb/s"              # Gb is bits, GB is bytes

[[levels]]                          # optional: nodes that are nearer to each other than inter_node says
name = "rack"                       # the nearest level comes first
nodes = [["n0", "m0"], ["m[1-7]"]]  # the nodes of each group, or patterns of their names
latency = "10 us"
bandwidth = "200 Gb/s"

[device_types.v100]
memory = "16 GB"
peak = "15.7 TFLOP/s"               # of matrix products in fp32, without TensorFloat-32 unless you allow it
peak_bf16 = "15.7 TFLOP/s"          # optional: of matrix products in bf16 (default: as in fp32)
peak_fp16 = "125 TFLOP/s"           # optional: of matrix products in fp16 (default: as in fp32)
peak_fp8 = "125 TFLOP/s"            # optional: of products of 8-bit numbers (default: as in bf16)
memory_bandwidth = "765 GB/s"
launch = "5 us"                     # optional: fixed cost of one kernel (default 5 us)
half_peak_flops = 1e9               # optional: FLOPs of a kernel at half of the peak (default: 64 us at peak)
host_bandwidth = "12 GB/s"          # optional: of copies to and from the memory of the node (default 12 GB/s)
context = "400 MB"                  # optional: what a process holds before it allocates anything (default: nothing)
workspace = "8 MB"                  # optional: what libraries hold for its stream (default: nothing)
communicator = "100 MB"             # optional: of each group of ranks that a device is in (default: nothing)
reserved = 0.05                     # optional: held by the allocator besides what is in use, as a share (default: 0)

[[nodes]]
name = "n0"
devices = { v100 = 4 }
host_memory = "512 GB"              # optional: for what devices offload (default: twice the memory of the devices)

[[nodes]]
name = "m"
devices = { v100 = 2 }
count = 8                           # optional: m0, m1, ..., m7

[[pair_links]]                      # optional: devices are named NODE/TYPE-NUMBER
first = "n0/v100-0"
second = "n0/v100-1"
latency = "5 us"
bandwidth = "25 GB/s"
"""

import fnmatch
from collections.abc import Iterator
from pathlib import Path

from graphpipe.cluster.device import (
    HOST_BANDWIDTH,
    ClusterFields,
    Device,
    DeviceType,
    HostMemory,
    Link,
    LinkLevel,
    PairLink,
)
from graphpipe.errors import InvalidInput, nearest
from graphpipe.files.toml import read_toml
from graphpipe.files.toml_section import Section
from graphpipe.units import parse_bytes, parse_flops, parse_rate, parse_seconds

LAUNCH_SECONDS = 5e-6
"""Assumed if the file does not give `launch`."""
_KEYS = (
    *("name", "overlap", "duplex", "cores_per_node"),
    *("intra_node", "inter_node", "levels", "device_types", "nodes", "pair_links"),
)
_LINK_KEYS = ("latency", "bandwidth", "processor", "processor_bandwidth")
_LEVEL_KEYS = (*_LINK_KEYS, "shared")
_TYPE_KEYS = (
    *("memory", "peak", "peak_bf16", "peak_fp16", "peak_fp8", "memory_bandwidth"),
    *("launch", "half_peak_flops", "host_bandwidth"),
    *("context", "workspace", "communicator", "reserved"),
)
HALF_PEAK_SECONDS = 64e-6
"""Time at peak of a kernel that reaches half of the peak. Assumed, as in the presets, if the file does not give
`half_peak_flops`."""


def file_fields(path: str | Path) -> ClusterFields:
    """Return the fields of the cluster in a TOML file.

    Raises:
        InvalidInput: unreadable, not TOML, an unknown key (the nearest is given), a missing key, or a value of the
            wrong type or out of range (the key is named).
    """
    root = Section(read_toml(path)[1], str(path))
    root.only(*_KEYS)
    types = root.section("device_types")
    nodes = root.sections("nodes")
    needs_inter = "inter_node" in root.table or len(nodes) > 1 or any("count" in node.table for node in nodes)
    return ClusterFields(
        name=root.text("name", Path(path).stem),
        device_types=tuple(_device_type(name, types.section(name)) for name in types.table),
        devices=tuple(device for node in nodes for device in _devices(node, list(types.table))),
        intra_node=_link(root.section("intra_node")),
        inter_node=_link(root.section("inter_node" if needs_inter else "intra_node")),
        levels=tuple(
            _level(level, [name for node in nodes for name in _names(node)]) for level in root.sections("levels")
        ),
        pair_links=tuple(_pair_link(pair) for pair in root.sections("pair_links")),
        overlap=root.flag("overlap", True),
        duplex=root.flag("duplex", False),
        cores_per_node=root.count("cores_per_node") if "cores_per_node" in root.table else None,
        host_memory=tuple(memory for node in nodes for memory in _host_memory(node)),
    )


def _link(section: Section) -> Link:
    section.only(*_LEVEL_KEYS)
    return _latency_and_bandwidth(section)


def _level(section: Section, nodes: list[str]) -> LinkLevel:
    section.only("name", "nodes", *_LEVEL_KEYS)
    groups = tuple(tuple(_matching(section, name, nodes)) for name in section.lists("nodes"))
    return LinkLevel(name=section.text("name"), link=_latency_and_bandwidth(section), nodes=groups)


def _matching(section: Section, patterns: list[str], nodes: list[str]) -> Iterator[str]:
    for pattern in patterns:
        if not (names := fnmatch.filter(nodes, pattern)):
            raise InvalidInput(
                f"names no node with '{pattern}'", where=section.at("nodes"), remedy=nearest(pattern, nodes)
            )
        yield from names


def _pair_link(section: Section) -> PairLink:
    section.only("first", "second", *_LINK_KEYS)
    return PairLink(first=section.text("first"), second=section.text("second"), link=_latency_and_bandwidth(section))


def _latency_and_bandwidth(section: Section) -> Link:
    copies = "processor_bandwidth" in section.table
    return Link(
        latency_seconds=section.quantity("latency", parse_seconds, zero=True),
        bandwidth_bytes_per_second=section.quantity("bandwidth", parse_rate),
        processor_seconds=section.quantity("processor", parse_seconds, default=0.0, zero=True),
        processor_seconds_per_byte=1 / section.quantity("processor_bandwidth", parse_rate) if copies else 0.0,
        shared=section.flag("shared", False),
    )


def _device_type(name: str, section: Section) -> DeviceType:
    section.only(*_TYPE_KEYS)
    peak = section.quantity("peak", parse_flops)
    return DeviceType(
        name=name,
        memory_bytes=section.quantity("memory", parse_bytes),
        peak_flops_per_second=peak,
        memory_bytes_per_second=section.quantity("memory_bandwidth", parse_rate),
        launch_seconds=section.quantity("launch", parse_seconds, default=LAUNCH_SECONDS, zero=True),
        half_peak_flops=section.quantity("half_peak_flops", _plain, default=peak * HALF_PEAK_SECONDS, zero=True),
        host_bandwidth_bytes_per_second=section.quantity("host_bandwidth", parse_rate, default=HOST_BANDWIDTH),
        bf16_peak_flops_per_second=_optional_peak(section, "peak_bf16"),
        fp16_peak_flops_per_second=_optional_peak(section, "peak_fp16"),
        fp8_peak_flops_per_second=_optional_peak(section, "peak_fp8"),
        context_bytes=section.quantity("context", parse_bytes, default=0.0, zero=True),
        workspace_bytes=section.quantity("workspace", parse_bytes, default=0.0, zero=True),
        communicator_bytes=section.quantity("communicator", parse_bytes, default=0.0, zero=True),
        reserved_share=section.quantity("reserved", _plain, default=0.0, zero=True),
    )


def _optional_peak(section: Section, key: str) -> float | None:
    return section.quantity(key, parse_flops) if key in section.table else None


def _plain(value: str | float, where: str) -> float:
    if isinstance(value, str):
        raise InvalidInput(f"is '{value}', must be a number without a unit", where=where)
    return float(value)


def _devices(node: Section, known: list[str]) -> Iterator[Device]:
    node.only("name", "devices", "count", "host_memory")
    devices = node.section("devices")
    devices.only(*known)
    for node_name in _names(node):
        for kind in devices.table:
            for number in range(devices.count(kind)):
                yield Device(name=f"{node_name}/{kind}-{number}", type=kind, node=node_name)


def _host_memory(node: Section) -> Iterator[HostMemory]:
    if "host_memory" in node.table:
        held = node.quantity("host_memory", parse_bytes, zero=True)
        yield from (HostMemory(node=name, bytes=held) for name in _names(node))


def _names(node: Section) -> list[str]:
    name = node.text("name")
    return [f"{name}{number}" for number in range(node.count("count"))] if "count" in node.table else [name]
