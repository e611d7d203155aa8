"""From gradients to new weights.

`replica_sync` is how the replicas of a stage sum gradients; each way is a file `sync_*`, listed in `registry`.
`tied_parameters` sums the gradients of parameters that stages share. `weight_update` clips gradients and steps the
optimizer, whose state `zero1` may shard.
"""
