"""Costs that are learned from a run: how much longer the passes of its stages took than their costs say."""

from graphpipe.profiler.learning.learn import learn, learn_from
from graphpipe.profiler.learning.learned import LearnedCosts, LearnedPass, largest_difference

__all__ = ["LearnedCosts", "LearnedPass", "largest_difference", "learn", "learn_from"]
