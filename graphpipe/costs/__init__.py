"""Costs: what operators, messages and stages take.

`cost_table` holds what was estimated (`analytic`), measured or imported. `cost_model` is the one look-up of every cost:
seconds of tasks, messages and all-reduces, and bytes of stages. `op_bytes`, `parameter_bytes` and `activation_bytes`
are its parts; `stage_memory` is the one formula of a stage's memory. `sample_load` declares what samples differ in.
"""

from graphpipe.costs.analytic import estimate
from graphpipe.costs.cost_model import CostModel
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_bytes import State
from graphpipe.costs.op_cost import Curve, OpCost, SavedBytes, Temporaries
from graphpipe.costs.recompute_regions import Recompute, regions
from graphpipe.costs.sample_load import Loads, SampleLoad, declare_loads
from graphpipe.costs.stage_memory import StageMemory
from graphpipe.costs.task_memory import TaskMemory
from graphpipe.costs.task_seconds import TaskSeconds

__all__ = [
    "CostModel",
    "CostTable",
    "Curve",
    "Loads",
    "OpCost",
    "Recompute",
    "SampleLoad",
    "SavedBytes",
    "StageMemory",
    "State",
    "TaskMemory",
    "TaskSeconds",
    "Temporaries",
    "declare_loads",
    "estimate",
    "regions",
]
