"""A plan cuts a captured model into stage programs: `split.split` is the entry.

`stage_graph` cuts the graph of one stage out of the model's, and `module_stage` runs it. `recompute_region` wraps the
operators that a stage recomputes. `split_for_shapes` repeats a split for inputs of other shapes. `autocast_specs` gives
the dtypes on the edges under autocast. `autograd_graph` reads the operations of a backward, and `whole_backwards` finds
the stages whose backward cannot be split into two halves. `record_backward` writes down what tells that of any plan.
"""
