"""The event engine, and the predicted trace, step time and memory of a plan."""

from graphpipe.simulator.predicted_step import predict, step_seconds

__all__ = ["predict", "step_seconds"]
