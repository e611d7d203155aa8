"""What will happen: the event engine, and the predicted trace, step time and memory of a plan."""

from graphpipe.simulator.prediction import predict
from graphpipe.simulator.step_seconds import step_seconds

__all__ = ["predict", "step_seconds"]
