"""A module as a graph of its submodules: `make_module_graph` is the entry and `module_graph` the value."""
