"""The graph search of GraphPipe (sections 5 and 6 of the paper).

`search` sweeps forms of the graph and micro-batch sizes. For each, `partition_search` asks `target_search`, which
bisects the time per sample (Algorithm 1). `dynamic_program` tells whether a partition over the series-parallel tree
reaches a time, and `backtrack` recovers that partition. `candidates` keeps the best partitions, which are then
scheduled and simulated.
"""
