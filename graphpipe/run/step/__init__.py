"""One mini-batch on one rank.

`train_step` is the order of a whole step: prepare the batch, run the schedule, sum up, update. `evaluation` is the same
without training. `build_worker` sets a rank up.
"""
