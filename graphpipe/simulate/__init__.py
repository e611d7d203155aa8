"""What will happen: the event engine, and the predicted trace, step time and memory of a plan."""

from graphpipe.simulate.prediction import predict
from graphpipe.simulate.simulator import simulate
from graphpipe.simulate.step_seconds import step_seconds

__all__ = ["predict", "simulate", "step_seconds"]
