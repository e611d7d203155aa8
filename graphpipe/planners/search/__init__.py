"""The graph search of GraphPipe (sections 5 and 6 of the paper).

`search` sweeps forms of the graph and micro-batch sizes. For each, `target_search` bisects the time per sample
(Algorithm 1), and `frontier` answers whether a partition reaches it, by dynamic programming over the series-parallel
tree. `candidates` keeps the best partitions, which are then scheduled and simulated.
"""
