"""The graph that autograd recorded of a micro-batch, and how it is split into an input half and a weight half.

    loss -> linear2 -> gelu -> linear1 -> received      the trunk: every operation that leads to a received value
               |                  |
            weight2            weight1                  edges that leave the trunk lead only to parameters

An operation of the trunk that also leads to parameters runs twice: along the trunk in the input half, and towards its
parameters in the weight half. Every other operation runs once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

Edges = tuple[GradientEdge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardGraph:
    """The operations that a backward runs."""

    roots: Edges
    children: dict[Node, Edges]
    """Where each operation passes gradients on to; children come before parents."""
    trunk: frozenset[Node]

    @staticmethod
    def of(roots: Sequence[GradientEdge], inputs: Iterable[Node]) -> "BackwardGraph":
        """Return the graph below `roots`; the trunk leads to `inputs`."""
        children = _walk(roots)
        trunk = set(inputs) & children.keys()
        for node, edges in children.items():
            if any(edge.node in trunk for edge in edges):
                trunk.add(node)
        return BackwardGraph(roots=tuple(roots), children=children, trunk=frozenset(trunk))

    def parameter_edges(self) -> dict[Node, Edges]:
        """Return, for every operation that runs twice, its edges that lead to parameters."""
        found: dict[Node, Edges] = {}
        for node, edges in self.children.items():
            leaving = tuple(dict.fromkeys(edge for edge in edges if edge.node not in self.trunk))
            if leaving and node in self.trunk:
                found[node] = leaving
        return found

    def arrivals(self) -> dict[Node, Edges]:
        """Return the incoming edges of each operation, each edge once."""
        found: dict[Node, dict[GradientEdge, None]] = {}
        for edge in self.roots:
            found.setdefault(edge.node, {})[edge] = None
        for edges in self.children.values():
            for edge in edges:
                found.setdefault(edge.node, {})[edge] = None
        return {node: tuple(edges) for node, edges in found.items()}

    def why_whole(self) -> str:
        """Return why this graph cannot be split; empty if it can.

        In the weight half, each operation that runs twice runs separately, for the gradients of its parameter edges. If
        a later one leads to the same edge, autograd runs the trunk between the two again, and counts that part twice.
        """
        by_operation = self.parameter_edges()
        for node in by_operation:
            if isinstance(node, BackwardCFunction):
                return f"{node.name()}, a function with its own backward, uses parameters beside received values"
        leaving = [edge for edges in by_operation.values() for edge in edges]
        below = {edge for node in _walk(leaving) for edge in self.children[node]}
        if len(set(leaving)) < len(leaving) or not below.isdisjoint(leaving):
            return "several operations use one parameter"
        return ""

    def check_complete(self) -> None:
        """Assert that the two halves together reach every operation of the whole backward."""
        outside = [root for root in self.roots if root.node not in self.trunk]
        reached = _walk([*outside, *(edge for edges in self.parameter_edges().values() for edge in edges)])
        assert self.trunk | reached.keys() == self.children.keys(), "a split backward would leave out a parameter"


def _walk(roots: Iterable[GradientEdge]) -> dict[Node, Edges]:
    # Depth first, in post-order. Without recursion, because graphs are deeper than Python's stack.
    found: dict[Node, Edges] = {}
    finished: dict[Node, Edges] = {}
    stack = [root.node for root in roots]
    while stack:
        node = stack[-1]
        if node in found:
            finished.setdefault(stack.pop(), found[node])
        else:
            found[node] = tuple(GradientEdge(child, slot) for child, slot in node.next_functions if child is not None)
            stack += [edge.node for edge in found[node] if edge.node not in found]
    return finished
