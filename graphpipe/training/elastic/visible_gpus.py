"""Which GPUs the ranks see when only some devices of a cluster are in use."""

import os
from collections.abc import Mapping, Sequence

import torch

from graphpipe.cluster import Cluster

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
    """Return the environment variables with which local rank i computes on the i-th of these devices.

    They are empty on a machine without CUDA, or with fewer GPUs than the cluster has devices.

    Args:
        cluster: all devices, in the order of this machine's GPUs.
        names: the devices in use.
    """
    count = torch.cuda.device_count()
    if count < len(cluster.devices):
        return {}
    visible = os.environ.get(VARIABLE)
    gpus = visible.split(",") if visible else [str(number) for number in range(count)]
    positions = {device.name: number for number, device in enumerate(cluster.devices)}
    return {VARIABLE: ",".join(gpus[positions[name]] for name in names)}
