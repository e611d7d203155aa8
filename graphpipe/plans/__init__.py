"""How it is cut: the plan, its verifier, and one file per planner."""

from graphpipe.plans.plan import Plan, Prediction, Stage, StageEdge

__all__ = ["Plan", "Prediction", "Stage", "StageEdge"]
