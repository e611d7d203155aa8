"""Figures: stage graph, operators, timeline, memory, training, planners."""
