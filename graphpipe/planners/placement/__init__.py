"""Chooses which backend runs which operators.

`patterns` lists the small sets of operators that a backend may run as one piece. `frontier_program` covers the graph
with them at the least cost. `evolution` searches what a backend for whole graphs gets.
"""
