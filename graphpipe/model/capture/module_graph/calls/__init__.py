"""Calls of opaque submodules: `opaque_calls` records them while torch.export traces.

`static_runs` finds out what a call returns (`call_outcome`) from two runs on fake tensors (`static_run`), in which
`data_flow` observes the operators. Equal calls of modules of equal structure (`module_structure`) run once.
"""
