"""A real happening: the training step on one rank or many, and the start of local ranks."""

from graphpipe.run.comm.rank_placement import RankLayout, SeatLayout
from graphpipe.run.pipeline import Pipeline

__all__ = ["Pipeline", "RankLayout", "SeatLayout"]
