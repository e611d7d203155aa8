"""The runtime of replicas that several ranks share, against what torch brings for it."""
