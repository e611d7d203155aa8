"""GraphPipe plans and runs pipeline-parallel training of PyTorch models whose stages form a graph."""

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from graphpipe.versions import check_requirements

if TYPE_CHECKING:
    from graphpipe.cluster import Cluster
    from graphpipe.costs import CostTable
    from graphpipe.costs.analytic import estimate
    from graphpipe.equivalence.check import check
    from graphpipe.errors import (
        CheckpointCorrupt,
        GraphPipeError,
        Infeasible,
        InvalidInput,
        NonFiniteLoss,
        OutOfMemory,
        PeerLost,
        PeerStalled,
    )
    from graphpipe.graph import Graph
    from graphpipe.model import DagModule
    from graphpipe.model.capture.capture import capture
    from graphpipe.model.inputs.packed_rows import packed_rows
    from graphpipe.model.own_loss.from_transformers import from_transformers
    from graphpipe.model.shards.with_shards import with_shards
    from graphpipe.planners.gradients_apart import place_gradients
    from graphpipe.planning.backwards import choose_backwards
    from graphpipe.planning.by_hand import HandStage
    from graphpipe.planning.hand_plan import hand_plan
    from graphpipe.planning.plan import plan
    from graphpipe.planning.settings import PlanSettings
    from graphpipe.plans.plan import Plan
    from graphpipe.profiler.profile import profile
    from graphpipe.run import Pipeline, PipelineOptions
    from graphpipe.run.checkpoint.checkpoints import Checkpoints
    from graphpipe.run.inference.inference_pipeline import InferencePipeline
    from graphpipe.run.sources.weights import Weights
    from graphpipe.run.stage.losses.weighted_loss import WeightedLoss
    from graphpipe.run.stage.shares.batch_share import BatchShare
    from graphpipe.run.stage.shares.needs import Needs
    from graphpipe.schedule import Schedule
    from graphpipe.simulator.simulate import simulate
    from graphpipe.trace import Trace
    from graphpipe.training.evaluate import evaluate
    from graphpipe.training.task.callback import Callback
    from graphpipe.training.task.task import Task
    from graphpipe.training.train import train

# A name is imported when it is first used: a rank then starts without the planners, and planning without torch.
_HOMES = {
    "BatchShare": "graphpipe.run.stage.shares.batch_share",
    "Callback": "graphpipe.training.task.callback",
    "CheckpointCorrupt": "graphpipe.errors",
    "Checkpoints": "graphpipe.run.checkpoint.checkpoints",
    "Cluster": "graphpipe.cluster",
    "CostTable": "graphpipe.costs",
    "DagModule": "graphpipe.model",
    "Graph": "graphpipe.graph",
    "GraphPipeError": "graphpipe.errors",
    "HandStage": "graphpipe.planning.by_hand",
    "Infeasible": "graphpipe.errors",
    "InvalidInput": "graphpipe.errors",
    "Needs": "graphpipe.run.stage.shares.needs",
    "NonFiniteLoss": "graphpipe.errors",
    "OutOfMemory": "graphpipe.errors",
    "PeerLost": "graphpipe.errors",
    "PeerStalled": "graphpipe.errors",
    "Pipeline": "graphpipe.run",
    "PipelineOptions": "graphpipe.run",
    "Plan": "graphpipe.plans.plan",
    "PlanSettings": "graphpipe.planning.settings",
    "Schedule": "graphpipe.schedule",
    "Task": "graphpipe.training.task.task",
    "Trace": "graphpipe.trace",
    "WeightedLoss": "graphpipe.run.stage.losses.weighted_loss",
    "Weights": "graphpipe.run.sources.weights",
    "capture": "graphpipe.model.capture.capture",
    "check": "graphpipe.equivalence.check",
    "choose_backwards": "graphpipe.planning.backwards",
    "estimate": "graphpipe.costs.analytic",
    "evaluate": "graphpipe.training.evaluate",
    "from_transformers": "graphpipe.model.own_loss.from_transformers",
    "InferencePipeline": "graphpipe.run.inference.inference_pipeline",
    "hand_plan": "graphpipe.planning.hand_plan",
    "packed_rows": "graphpipe.model.inputs.packed_rows",
    "place_gradients": "graphpipe.planners.gradients_apart",
    "plan": "graphpipe.planning.plan",
    "profile": "graphpipe.profiler.profile",
    "simulate": "graphpipe.simulator.simulate",
    "train": "graphpipe.training.train",
    "with_shards": "graphpipe.model.shards.with_shards",
}


def _warn_of_namesake() -> None:
    # An older project on the index has our import name. Whichever is installed last overwrites files of the other.
    try:
        distribution("graphpipe")
    except PackageNotFoundError:
        return
    warnings.warn(
        "another distribution, 'graphpipe', brings a package of the same name as graphpipe-torch: `graphpipe doctor` "
        "says how to repair this",
        stacklevel=3,
    )


check_requirements()
_warn_of_namesake()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graphpipe' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__


__version__ = "0.1.0"
__all__ = [
    "BatchShare",
    "Callback",
    "CheckpointCorrupt",
    "Checkpoints",
    "Cluster",
    "CostTable",
    "DagModule",
    "Graph",
    "GraphPipeError",
    "HandStage",
    "Infeasible",
    "InferencePipeline",
    "InvalidInput",
    "Needs",
    "NonFiniteLoss",
    "OutOfMemory",
    "PeerLost",
    "PeerStalled",
    "Pipeline",
    "PipelineOptions",
    "Plan",
    "PlanSettings",
    "Schedule",
    "Task",
    "Trace",
    "WeightedLoss",
    "Weights",
    "capture",
    "check",
    "choose_backwards",
    "estimate",
    "evaluate",
    "from_transformers",
    "hand_plan",
    "packed_rows",
    "place_gradients",
    "plan",
    "profile",
    "simulate",
    "train",
    "with_shards",
]
