"""Which device of this machine is the one that a cluster names, so that no table has the times of another."""

import torch

from graphpipe.cluster import Cluster
from graphpipe.cluster.presets import accelerator_presets
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.devices.registry import kind_of, usable_accelerator
from graphpipe.errors import InvalidInput
from graphpipe.torchrun import local_rank

_REMEDY = (
    "Profile on a machine that has it, or estimate the costs (plan.costs=estimate). If the cluster means this machine, "
    "give the type another name in a cluster file"
)


def profiled_device(cluster: Cluster) -> torch.device:
    """Return where to measure operators, so that they run where the ranks of the cluster will.

        type of the devices                   this machine has            measured on
        cpu, or cpu with more behind it       anything                    its processor
        that of a preset: v100, a100, h100    an accelerator so called    that
                                              another one, or none        refused
        any other                             an accelerator              that
                                              none                        its processor, if the devices are processes
                                                                          that share cores; otherwise refused

    Args:
        cluster: its devices are of one type.

    Raises:
        InvalidInput: it has several types, or this machine does not have that one.
    """
    name, kind = _only_type(cluster), usable_accelerator()
    if cluster.on_processors:
        return torch.device("cpu")
    if kind is None:
        if cluster.cores_per_node is None or name in accelerator_presets():
            raise _refusal(cluster, name, "this machine has no accelerator that torch can use")
        return torch.device("cpu")
    device = torch.device(kind.name, (local_rank() or 0) % kind.count())
    if name in accelerator_presets() and not _is_called(kind, device, name):
        raise _refusal(cluster, name, f"this machine has {kind.describe(device)}")
    return device


def device_frequency(cluster: Cluster) -> float | None:
    """Return the hertz at which the device to be measured computes now; None if that is not known.

    Raises:
        InvalidInput: as `profiled_device`.
    """
    device = profiled_device(cluster)
    return kind_of(device).frequency(device)


def _only_type(cluster: Cluster) -> str:
    types = {device.type for device in cluster.devices}
    if len(types) > 1:
        names = ", ".join(sorted(types))
        raise InvalidInput(
            f"cluster '{cluster.name}' has devices of types {names}, but a machine can measure only one",
            remedy="Profile on a cluster of one type, or estimate the costs.",
        )
    return types.pop()


def _is_called(kind: DeviceKind, device: torch.device, name: str) -> bool:
    return name.lower() in kind.describe(device).lower()


def _refusal(cluster: Cluster, name: str, found: str) -> InvalidInput:
    what = f"cluster '{cluster.name}' has devices of type {name}, and {found}"
    remedy = f"{_REMEDY}{'' if cluster.cores_per_node is not None else ', such as cpu'}."
    return InvalidInput(what, where="profile", remedy=remedy)
