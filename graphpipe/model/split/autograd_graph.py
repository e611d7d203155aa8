"""The graph that autograd recorded of a micro-batch's backward."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from graphpipe.graph.backward_graph import BackwardGraph

COMPILED_BACKWARD = "CompiledFunctionBackward"
"""The name of the operation that is the backward of a region which `torch.compile` has compiled."""
Edges = tuple[GradientEdge, ...]
AutogradGraph: TypeAlias = BackwardGraph[Node, GradientEdge]


def autograd_graph(roots: Sequence[GradientEdge], inputs: Iterable[Node]) -> AutogradGraph:
    """Return the graph below `roots`; its trunk leads to `inputs`."""
    return BackwardGraph.of(roots, inputs, edges_of)


def edges_of(node: Node) -> Edges:
    """Return where an operation passes gradients on to."""
    return tuple(GradientEdge(child, slot) for child, slot in node.next_functions if child is not None)


def own_backward(node: Node) -> str:
    """Return the name of a function with its own backward (`torch.autograd.Function`); empty for other operations.

    A compiled region is none: its backward runs in halves.
    """
    return node.name() if isinstance(node, BackwardCFunction) and node.name() != COMPILED_BACKWARD else ""
