"""What it costs: the cluster, the cost table, the analytic model and the profiler."""

from graphpipe.costs.analytic import estimate
from graphpipe.costs.cost_model import CostModel, TaskSeconds
from graphpipe.costs.cost_table import CostTable, Curve, OpCost, Temporaries
from graphpipe.costs.recompute_regions import Recompute, regions
from graphpipe.costs.task_memory import TaskBytes, task_bytes

__all__ = [
    "CostModel",
    "CostTable",
    "Curve",
    "OpCost",
    "Recompute",
    "TaskBytes",
    "TaskSeconds",
    "Temporaries",
    "estimate",
    "regions",
    "task_bytes",
]
