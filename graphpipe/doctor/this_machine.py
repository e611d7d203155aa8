"""The cluster of this machine's accelerators."""

from pathlib import Path

import torch

from graphpipe.cluster.presets import accelerator_presets
from graphpipe.devices.device_kind import DeviceKind

_UNKNOWN = """\
# Only the memory is that of these devices. `graphpipe profile` measures their speed, and `--links` that of their links.
name = "this machine"

[intra_node]
latency = "10 us"
bandwidth = "20 GB/s"

[device_types.gpu]
memory = {memory}
peak = "10 TFLOP/s"
memory_bandwidth = "500 GB/s"

[[nodes]]
name = "here"
devices = {{ gpu = {count} }}
"""


def cluster_here(kind: DeviceKind, folder: Path) -> str:
    """Return the preset of this machine's devices, or a cluster file that is written for them.

    Args:
        kind: of the devices.
        folder: for the file.
    """
    device, count = torch.device(kind.name, 0), kind.count()
    name = kind.describe(device).lower()
    known = next((preset for part, preset in accelerator_presets().items() if part in name), None)
    if known is not None:
        return f"{known}:1x{count}"
    file = folder / "this-machine.toml"
    file.write_text(_UNKNOWN.format(memory=kind.total_bytes(device), count=count), encoding="utf-8")
    return str(file)
