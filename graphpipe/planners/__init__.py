"""Planners: functions from a problem (graph, costs, cluster, mini-batch) to a plan.

`registry` lists them. `graphpipe` is the default: it searches graphs of stages (`search/`) and improves what it finds
(`improve/`). `spp` searches chains, and `baselines/` are the planners of other systems. `lower_bound/` proves how good
a plan can be.
"""
