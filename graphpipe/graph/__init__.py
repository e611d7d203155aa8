"""What is computed: the operator graph, its decomposition, and importers of other tools' profiles."""

from graphpipe.graph.operator_graph import Edge, Graph, Input, Measured, Op, Origin, Work

__all__ = ["Edge", "Graph", "Input", "Measured", "Op", "Origin", "Work"]
