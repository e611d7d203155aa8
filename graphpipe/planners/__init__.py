"""Planners: functions from a problem (graph, costs, cluster, mini-batch) to a plan.

`registry` lists them. `graphpipe` is the default: it searches graphs of stages (`search/`) and improves what it finds
(`improve/`). `spp` searches chains, `baselines/` are the planners of other systems, and `by_hand` takes stages that a
person wrote. `choose_schedule` tries schedules for a plan. `lower_bound/` proves how good a plan can be.
"""
