"""Tensor parallelism inside a stage: which parts of an operator its ranks share, and the submodules that compute them.

`layouts` finds how the submodules of a model can be shared, `with_shards` notes it in a graph with what it costs, and
`shared_submodule` makes the submodule that one rank runs. `team` is how the ranks of a replica exchange values.
"""
