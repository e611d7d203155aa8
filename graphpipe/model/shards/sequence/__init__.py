"""Sequence parallelism: ranks that share layers divide the sequence between these layers.

`exchange` is what the ranks exchange, `on_shards` the submodules that are called with shards, `divided_nodes` says
which nodes of a graph compute shards, and `find_sequence` finds and measures it for a model.
"""
