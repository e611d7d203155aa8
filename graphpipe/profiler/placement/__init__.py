"""Measures backends on the regions of a model, and places the stages of a plan on them.

`place` is the entry, and compares whole placements. `pattern_costs` gives the dynamic programme its costs. `timing`
measures, and `timing_cache` keeps what was measured.
"""
