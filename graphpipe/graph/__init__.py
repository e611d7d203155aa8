"""What is computed: the operator graph, its decomposition, and importers of other tools' profiles."""

from graphpipe.graph.import_pipedream import read_pipedream
from graphpipe.graph.import_piper import read_piper
from graphpipe.graph.operator import Edge, Input, Measured, Op, Origin, Shared, Work
from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.series_parallel import decompose
from graphpipe.graph.tree import Leaf, Parallel, Series

__all__ = [
    "Edge",
    "Graph",
    "Input",
    "Leaf",
    "Measured",
    "Op",
    "Origin",
    "Parallel",
    "Series",
    "Shared",
    "Work",
    "decompose",
    "read_pipedream",
    "read_piper",
]
