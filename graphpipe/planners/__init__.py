"""Planners: functions from a problem (graph, costs, cluster, mini-batch) to a plan."""
