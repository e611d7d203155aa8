"""Whether a plan trains a model as plain PyTorch does: a few samples are trained both ways.

`check` is the entry. `plain_step` and `cut_step` each train the samples once, and return a `StepRecord`. `compare`
finds what differs, and `locate` says at which level: where the model was captured, divided or cut.
"""
