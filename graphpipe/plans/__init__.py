"""Plans, which cut a graph into stages: the value, its file, its estimates and its verifier."""

from graphpipe.plans.plan import Plan
from graphpipe.plans.prediction import Prediction
from graphpipe.plans.stage import Stage, StageEdge

__all__ = ["Plan", "Prediction", "Stage", "StageEdge"]
