"""What it costs: the cluster, the cost table, the analytic model and the profiler."""

from graphpipe.costs.analytic import estimate
from graphpipe.costs.cluster import Cluster, Device, DeviceType, Link, PairLink
from graphpipe.costs.model import CostModel, TaskSeconds
from graphpipe.costs.presets import preset, resolve
from graphpipe.costs.recompute import Recompute, regions
from graphpipe.costs.table import CostTable, Curve, OpCost, Temporaries
from graphpipe.costs.task_bytes import TaskBytes, task_bytes

__all__ = [
    "Cluster",
    "CostModel",
    "CostTable",
    "Curve",
    "Device",
    "DeviceType",
    "Link",
    "OpCost",
    "PairLink",
    "Recompute",
    "TaskBytes",
    "TaskSeconds",
    "Temporaries",
    "estimate",
    "preset",
    "regions",
    "resolve",
    "task_bytes",
]
