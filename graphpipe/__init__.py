"""GraphPipe plans and runs pipeline-parallel training of PyTorch models whose stages form a graph."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphpipe.api import choose_backwards, estimate, hand_plan, plan, simulate
from graphpipe.cluster import Cluster
from graphpipe.costs import CostTable
from graphpipe.errors import (
    CheckpointCorrupt,
    GraphPipeError,
    Infeasible,
    InvalidInput,
    NonFiniteLoss,
    PeerLost,
    PeerStalled,
)
from graphpipe.graph import Graph
from graphpipe.planners.by_hand import HandStage
from graphpipe.plans.plan import Plan
from graphpipe.schedule import Schedule
from graphpipe.trace import Trace

if TYPE_CHECKING:
    from graphpipe.model import DagModule
    from graphpipe.model.capture.capture import capture
    from graphpipe.model.own_loss.from_transformers import from_transformers
    from graphpipe.profiler.profile import profile
    from graphpipe.run import Pipeline
    from graphpipe.run.checkpoint.checkpoints import Checkpoints
    from graphpipe.training.task.task import Task

# What needs torch is imported when it is first used: planning alone starts in a fraction of a second.
_WITH_TORCH = {
    "Checkpoints": "graphpipe.run.checkpoint.checkpoints",
    "DagModule": "graphpipe.model",
    "Pipeline": "graphpipe.run",
    "Task": "graphpipe.training.task.task",
    "capture": "graphpipe.model.capture.capture",
    "from_transformers": "graphpipe.model.own_loss.from_transformers",
    "profile": "graphpipe.profiler.profile",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'graphpipe' has no attribute '{name}'")


__version__ = "0.1.0"
__all__ = [
    "CheckpointCorrupt",
    "Checkpoints",
    "Cluster",
    "CostTable",
    "DagModule",
    "Graph",
    "GraphPipeError",
    "HandStage",
    "Infeasible",
    "InvalidInput",
    "NonFiniteLoss",
    "PeerLost",
    "PeerStalled",
    "Pipeline",
    "Plan",
    "Schedule",
    "Task",
    "Trace",
    "capture",
    "choose_backwards",
    "estimate",
    "from_transformers",
    "hand_plan",
    "plan",
    "profile",
    "simulate",
]
