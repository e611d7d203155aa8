"""Which GPUs ranks see, when not all of a cluster's devices are in use."""

import os
from collections.abc import Mapping, Sequence

import torch

from graphpipe.cluster import Cluster

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
    """Return what ranks need in their environment so that local rank i computes on the i-th of these devices.

    Nothing on a machine without CUDA, or with fewer GPUs than the cluster has devices.
    """
    count = torch.cuda.device_count()
    if count < len(cluster.devices):
        return {}
    given = os.environ.get(VISIBLE)
    numbers = given.split(",") if given else [str(number) for number in range(count)]
    positions = {device.name: number for number, device in enumerate(cluster.devices)}
    return {VISIBLE: ",".join(numbers[positions[name]] for name in names)}
