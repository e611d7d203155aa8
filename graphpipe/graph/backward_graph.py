"""The graph of operations that a backward runs, and how it is split into an input half and a weight half.

    loss -> linear2 -> gelu -> linear1 -> received      the trunk: every operation that leads to a received value
               |                  |
            weight2            weight1                  edges that leave the trunk lead only to parameters

An operation of the trunk that also leads to parameters runs twice: along the trunk in the input half, and towards its
parameters in the weight half. Every other operation runs once.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)
Edge = TypeVar("Edge", bound=tuple[Any, ...])
"""An edge begins with the operation that it leads to, and goes on with the output of that operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardGraph(Generic[Node, Edge]):
    """The operations that a backward runs."""

    roots: tuple[Edge, ...]
    children: dict[Node, tuple[Edge, ...]]
    """Where each operation passes gradients on to; children come before parents."""
    trunk: frozenset[Node]

    @staticmethod
    def of(
        roots: Sequence[Edge], inputs: Iterable[Node], edges_of: Callable[[Node], tuple[Edge, ...]]
    ) -> "BackwardGraph[Node, Edge]":
        """Return the graph below `roots`, given the edges of each operation; the trunk leads to `inputs`."""
        children = walk(roots, edges_of)
        trunk = set(inputs) & children.keys()
        for node, edges in children.items():
            if any(edge[0] in trunk for edge in edges):
                trunk.add(node)
        return BackwardGraph(roots=tuple(roots), children=children, trunk=frozenset(trunk))

    def parameter_edges(self) -> dict[Node, tuple[Edge, ...]]:
        """Return, for every operation that runs twice, its edges that lead to parameters."""
        edges_by_node: dict[Node, tuple[Edge, ...]] = {}
        for node, edges in self.children.items():
            leaving = tuple(dict.fromkeys(edge for edge in edges if edge[0] not in self.trunk))
            if leaving and node in self.trunk:
                edges_by_node[node] = leaving
        return edges_by_node

    def arrivals(self) -> dict[Node, tuple[Edge, ...]]:
        """Return the incoming edges of each operation, each edge once."""
        incoming: dict[Node, dict[Edge, None]] = {}
        for edge in self.roots:
            incoming.setdefault(edge[0], {})[edge] = None
        for edges in self.children.values():
            for edge in edges:
                incoming.setdefault(edge[0], {})[edge] = None
        return {node: tuple(edges) for node, edges in incoming.items()}

    def why_whole(self, own_backward: Callable[[Node], str]) -> str:
        """Return why this graph cannot be split; empty if it can.

        In the weight half, each operation that runs twice runs separately, for the gradients of its parameter edges. If
        a later one leads to the same edge, autograd runs the trunk between the two again, and counts that part twice.

        Args:
            own_backward: the name of an operation that is a function with its own backward; empty for any other.
        """
        by_operation = self.parameter_edges()
        for node in by_operation:
            if name := own_backward(node):
                return f"{name}, a function with its own backward, uses parameters beside received values"
        leaving = [edge for edges in by_operation.values() for edge in edges]
        below = {edge for node in walk(leaving, self.children.__getitem__) for edge in self.children[node]}
        if len(set(leaving)) < len(leaving) or not below.isdisjoint(leaving):
            return "several operations use one parameter"
        return ""

    def check_complete(self) -> None:
        """Assert that the two halves together reach every operation of the whole backward."""
        outside = [root for root in self.roots if root[0] not in self.trunk]
        entered = [*outside, *(edge for edges in self.parameter_edges().values() for edge in edges)]
        reached = walk(entered, self.children.__getitem__)
        assert self.trunk | reached.keys() == self.children.keys(), "a split backward would leave out a parameter"


def walk(roots: Sequence[Edge], edges_of: Callable[[Node], tuple[Edge, ...]]) -> dict[Node, tuple[Edge, ...]]:
    """Return the edges of every operation below `roots`, depth first and in post-order: children before parents.

    There is no recursion, because these graphs are deeper than Python's stack.
    """
    children: dict[Node, tuple[Edge, ...]] = {}
    finished: dict[Node, tuple[Edge, ...]] = {}
    stack: list[Node] = [root[0] for root in roots]
    while stack:
        node = stack[-1]
        if node in children:
            finished.setdefault(stack.pop(), children[node])
        else:
            children[node] = edges_of(node)
            stack += [edge[0] for edge in children[node] if edge[0] not in children]
    return finished
