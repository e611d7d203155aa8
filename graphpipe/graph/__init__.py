"""What is computed: the operator graph, its decomposition, and importers of other tools' profiles."""

from graphpipe.graph.operator_graph import Edge, Graph, Measured, Op, Work

__all__ = ["Edge", "Graph", "Measured", "Op", "Work"]
