"""A real happening: the training step on one rank or many, and the start of local ranks."""

from graphpipe.run.launch import launch
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.placement import RankLayout, SeatLayout

__all__ = ["Pipeline", "RankLayout", "SeatLayout", "launch"]
