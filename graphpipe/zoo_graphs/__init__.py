"""Graphs of the zoo's models that come with the package. `zoo_graph` reads them from the files in `data`."""

from graphpipe.zoo_graphs.zoo_graph import ZooGraph, find_zoo_graph, zoo_graph_names

__all__ = ["ZooGraph", "find_zoo_graph", "zoo_graph_names"]
