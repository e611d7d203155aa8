"""A backward in two halves: the gradients of values first, those of parameters later.

`split_backward` runs the halves, and `releasable_tensors` are the saved tensors that can go between them.
"""
