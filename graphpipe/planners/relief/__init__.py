"""What a stage recomputes and offloads so that it fits in memory, in the fewest seconds.

`relief` finds it: of single operators by partial `choices` about `stage_ops`, with the bound of `least_relief`, and of
whole `submodules`.
"""
