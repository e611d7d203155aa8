"""Measures backends on the regions of a model, and places the stages of a plan on them.

`place` is the entry, and compares whole placements. `patterns` lists the small sets of operators that a backend may run
as one piece. `frontier_program` covers the graph with them at the least cost, and `pattern_costs` gives it the costs.
`evolution` searches what a backend for whole graphs gets. `timing` measures, and `timing_cache` keeps what it measured.
"""
