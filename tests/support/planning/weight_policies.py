"""The weight policies that do not flush, each with its predictor."""

from graphpipe.plans.stage import Predictor, WeightPolicy

POLICIES: list[tuple[WeightPolicy, Predictor]] = [
    ("stash", ""),
    ("vertical-sync", ""),
    ("double-buffer", ""),
    ("moving-average", ""),
    ("predict", "pipeoptim"),
    ("predict", "spectrain"),
    ("predict", "xpipe"),
]
