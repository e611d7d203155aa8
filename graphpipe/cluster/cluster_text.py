"""Text of a cluster's TOML file."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import BESIDE_STAGES, DeviceType, Link


def cluster_text(cluster: Cluster) -> str:
    """Return the TOML text from which `Cluster.load` makes an equal cluster. Amounts are in seconds and bytes."""
    return "\n".join(_lines(cluster)) + "\n"


def _lines(cluster: Cluster) -> Iterator[str]:
    yield f"name = {_text(cluster.name)}"
    yield f"overlap = {json.dumps(cluster.overlap)}"
    yield f"duplex = {json.dumps(cluster.duplex)}"
    if cluster.cores_per_node is not None:
        yield f"cores_per_node = {cluster.cores_per_node}"
    near, *levels, far = cluster.every_level
    for level in (near, far):
        yield from ("", f"[{level.name}]", *_link(level.link))
    for level in levels:
        groups = ", ".join(f"[{', '.join(map(_text, nodes))}]" for nodes in level.nodes)
        yield from ("", "[[levels]]", f"name = {_text(level.name)}", f"nodes = [{groups}]", *_link(level.link))
    for kind in cluster.device_types:
        yield from ("", f"[device_types.{_text(kind.name)}]", *_type(kind))
    host_memory = {each.node: each.bytes for each in cluster.host_memory}
    for node, devices in groupby(cluster.devices, lambda device: device.node):
        counts = Counter(device.type for device in devices)
        kinds = ", ".join(f"{_text(kind)} = {count}" for kind, count in counts.items())
        yield from ("", "[[nodes]]", f"name = {_text(node)}", f"devices = {{ {kinds} }}")
        if node in host_memory:
            yield f"host_memory = {host_memory[node]!r}"
    for pair in cluster.pair_links:
        ends = (f"first = {_text(pair.first)}", f"second = {_text(pair.second)}")
        yield from ("", "[[pair_links]]", *ends, *_link(pair.link))


def _text(text: str) -> str:
    # JSON escapes a letter beyond 16 bits as two, which TOML refuses, and leaves the control character DEL as it is.
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(letter: str) -> str:
    if letter == "\x7f" or ord(letter) > 0xFFFF:
        return f"\\U{ord(letter):08x}"
    return json.dumps(letter)[1:-1]


def _link(link: Link) -> Iterator[str]:
    yield f"latency = {link.latency_seconds!r}"
    yield f"bandwidth = {link.bandwidth_bytes_per_second!r}"
    if link.processor_seconds:
        yield f"processor = {link.processor_seconds!r}"
    if link.processor_seconds_per_byte:
        yield f"processor_bandwidth = {1 / link.processor_seconds_per_byte!r}"
    if link.shared:
        yield "shared = true"


def _type(kind: DeviceType) -> Iterator[str]:
    yield f"memory = {kind.memory_bytes!r}"
    yield f"peak = {kind.peak_flops_per_second!r}"
    if kind.bf16_peak_flops_per_second is not None:
        yield f"peak_bf16 = {kind.bf16_peak_flops_per_second!r}"
    if kind.fp16_peak_flops_per_second is not None:
        yield f"peak_fp16 = {kind.fp16_peak_flops_per_second!r}"
    if kind.fp8_peak_flops_per_second is not None:
        yield f"peak_fp8 = {kind.fp8_peak_flops_per_second!r}"
    yield f"memory_bandwidth = {kind.memory_bytes_per_second!r}"
    yield f"launch = {kind.launch_seconds!r}"
    yield f"half_peak_flops = {kind.half_peak_flops!r}"
    yield f"host_bandwidth = {kind.host_bandwidth_bytes_per_second!r}"
    for field in BESIDE_STAGES:
        if held := getattr(kind, field):
            yield f"{field.partition('_')[0]} = {held!r}"
