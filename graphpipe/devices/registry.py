"""Kinds of device by name: those of GraphPipe, of installed packages, and those that a program registers."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import torch

from graphpipe.devices.cpu import CPU, UNKNOWN
from graphpipe.devices.cuda import CUDA
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.plugins import load_plugins, register_by_name

ENTRY_POINTS = "graphpipe.device_kinds"
"""Entry-point group through which an installed package registers a `DeviceKind` for every process."""

_BY_NAME: dict[str, DeviceKind] = {CPU.name: CPU, CUDA.name: CUDA}
DEVICE_KINDS: Mapping[str, DeviceKind] = MappingProxyType(_BY_NAME)
"""All kinds registered so far."""


def register_device_kind(kind: DeviceKind) -> None:
    """Register a kind of device, so that this process computes on it where `PipelineOptions.device` names it.

    For the command line and for ranks, declare it as an entry point of an installed package:

        [project.entry-points."graphpipe.device_kinds"]
        npu = "my_package.npu:NPU"

    Raises:
        InvalidInput: another kind has this name.
    """
    register_by_name(_BY_NAME, kind, "kind of device")


def all_device_kinds() -> Mapping[str, DeviceKind]:
    """Return `DEVICE_KINDS`, including the kinds of installed packages."""
    _register_installed()
    return DEVICE_KINDS


def kind_of(device: torch.device) -> DeviceKind:
    """Return the kind of a device, `UNKNOWN` if nobody has registered it."""
    return _BY_NAME.get(device.type, UNKNOWN)


def usable_accelerator() -> DeviceKind | None:
    """Return the first kind with a device that this process can use besides the host's cores; None if there is none."""
    return next((kind for kind in all_device_kinds().values() if not kind.on_host and kind.count()), None)


def default_kind() -> DeviceKind:
    """Return the accelerator that this process can use, or else the CPU."""
    return usable_accelerator() or CPU


@cache
def _register_installed() -> None:
    for _, kind in load_plugins(ENTRY_POINTS, DeviceKind):
        register_device_kind(kind)
