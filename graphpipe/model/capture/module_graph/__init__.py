"""A module as a graph of its submodules: `make_module_graph` is the entry and `module_graph` the value.

`opaque_modules` decides which submodules are not looked into. `exported_graph` traces the module with torch.export,
while `calls` records the calls of opaque submodules, and `translation` turns the exported program into a module
graph. `declared_graph` follows the declaration of a DagModule instead. `rebuild_containers` prepares arguments of
calls, and `broadcast_masks` makes masks that can be followed. After an attempt that fails, `attempts` changes what is
opaque, or `failures` explains why a module cannot be captured.
"""
