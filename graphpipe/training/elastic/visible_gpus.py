"""Which GPUs the ranks see when only some devices of a cluster are in use."""

import os
from collections.abc import Mapping, Sequence

from graphpipe.cluster import Cluster
from graphpipe.devices.registry import usable_accelerator


def visible_gpus(cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
    """Return the environment variables with which local rank i computes on the i-th of these devices.

    They are empty on a machine without an accelerator, or with fewer of them than the cluster has devices.

    Args:
        cluster: all devices, in the order of this machine's GPUs.
        names: the devices in use.
    """
    kind = usable_accelerator()
    if kind is None or kind.visible_variable is None or (count := kind.count()) < len(cluster.devices):
        return {}
    visible = os.environ.get(kind.visible_variable)
    gpus = visible.split(",") if visible else [str(number) for number in range(count)]
    positions = {device.name: number for number, device in enumerate(cluster.devices)}
    return {kind.visible_variable: ",".join(gpus[positions[name]] for name in names)}
