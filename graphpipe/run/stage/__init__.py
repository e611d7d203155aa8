"""One replica of a stage, which computes.

A `stage_replica` is what lasts from step to step, and its `stage_replica_run` runs the tasks of one step.
`stage_forward` is one forward. `micro_batch` is one micro-batch in flight: its forward, its backward and the gradients
that it sends back, weighted by its share of the mini-batch. `recompute` changes how a backward is done, and `loss`
checks the user's loss.
"""
