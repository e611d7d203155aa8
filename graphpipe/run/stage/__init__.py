"""One replica of a stage, which computes.

`stage_replica` runs the tasks of its stage. `micro_batch` is one micro-batch in flight: its forward, its backward and
the gradients that it sends back, weighted by its share of the mini-batch. `recompute` and `split_backward` change how a
backward is done, and `loss` checks the user's loss.
"""
