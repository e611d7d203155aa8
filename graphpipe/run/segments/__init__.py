"""Training without a flush: several mini-batches on one rank, each stage with its own updates.

`train_segment` is the order of a whole segment. `stage_update` updates the weights of one stage, `drained_state` brings
back the state before a segment that failed, and `check_policy` refuses options that a weight policy excludes.
"""
