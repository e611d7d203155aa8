"""A module becomes a graph of operators: `capture.capture` is the entry.

`module_graph/` traces the module into calls of its submodules and the glue between them. `shape_propagation` runs that
on fake tensors to get shapes and work. `crossing_values` decides which values may leave the operator that computes
them. `join_uncuttable` and `fuse_tiny` group nodes into operators, and `groups` holds what both need. `build_ops`
writes the operators and edges of the graph.
"""
