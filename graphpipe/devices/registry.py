"""Kinds of device by name: those of GraphPipe, of installed packages, and those that a program registers."""

import torch

from graphpipe.devices.cpu import CPU, UNKNOWN
from graphpipe.devices.cuda import CUDA
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.plugins import Registry

DEVICE_KINDS: Registry[DeviceKind] = Registry("kind of device", DeviceKind, "graphpipe.device_kinds", own=(CPU, CUDA))
"""All kinds registered so far. A process computes on one of them where `PipelineOptions.device` names it."""
register_device_kind, all_device_kinds = DEVICE_KINDS.register, DEVICE_KINDS.all


def kind_of(device: torch.device) -> DeviceKind:
    """Return the kind of a device, `UNKNOWN` if nobody has registered it."""
    return DEVICE_KINDS.get(device.type, UNKNOWN)


def usable_accelerator() -> DeviceKind | None:
    """Return the first kind with a device that this process can use besides the host's cores; None if there is none."""
    return next((kind for kind in all_device_kinds().values() if not kind.on_host and kind.count()), None)


def default_kind() -> DeviceKind:
    """Return the accelerator that this process can use, or else the CPU."""
    return usable_accelerator() or CPU
