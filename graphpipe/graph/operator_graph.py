"""The operator graph: what a model computes, checked on construction."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.files.json_document import fingerprint, from_body, read_document, write_document
from graphpipe.graph.checks import check_graph
from graphpipe.graph.operator import Edge, Input, Op, Origin, Shared


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Graph:
    """A directed acyclic graph of operators.

    Raises:
        InvalidInput: no operators, a duplicate name, an edge to an unknown operator, a duplicate edge, a cycle
            (one is spelled out), a negative, infinite or NaN cost, or a shared parameter that fewer than two
            operators hold.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[Input, ...] = ()
    """What the model takes; empty for an imported graph."""
    origin: Origin | None = None
    """None for a graph that no module stands behind (imported, or written by hand)."""
    shared: tuple[Shared, ...] = ()
    """Parameters of more than one operator. One that is not listed must stay in one stage."""

    def __post_init__(self) -> None:
        check_graph(self)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each operator in `ops`, by name."""
        return {op.name: position for position, op in enumerate(self.ops)}

    @cached_property
    def successors(self) -> dict[str, tuple[str, ...]]:
        """Names of the operators that read each operator's output, in edge order."""
        return _neighbours(self, forward=True)

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        """Names of the operators whose outputs each operator reads, in edge order."""
        return _neighbours(self, forward=False)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """A topological order of the operator names, the same on every machine."""
        return _topological_order(self)

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """Names of the operators to whose outputs a gradient comes back: they or operators before them train.

        An operator trains if it has parameters that are not all frozen. A graph that tells of no parameters at all
        (written by hand) trains everywhere.
        """
        silent = not any(op.parameters or op.parameter_bytes for op in self.ops)
        found: set[str] = set()
        for name in self.order:
            op = self[name]
            trains = op.trainable and (silent or bool(op.parameters) or op.parameter_bytes > 0)
            if trains or any(before in found for before in self.predecessors[name]):
                found.add(name)
        return frozenset(found)

    @cached_property
    def holders(self) -> dict[str, tuple[str, ...]]:
        """Names of the operators that hold each shared parameter, in order of `ops`."""
        found: dict[str, list[str]] = {each.name: [] for each in self.shared}
        for op in self.ops:
            for name in op.parameters:
                if name in found:
                    found[name].append(op.name)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this graph."""
        return fingerprint(self)

    def __getitem__(self, name: str) -> Op:
        """Return the operator of this name."""
        return self.ops[self.index[name]]

    def save(self, path: str | Path) -> None:
        """Write the graph as a JSON document."""
        write_document(path, "graph", self)

    @staticmethod
    def load(path: str | Path) -> "Graph":
        """Read a graph written by `save`.

        Raises:
            InvalidInput: the file is not a valid graph of this schema version.
        """
        return read_document(path, "graph", lambda body: from_body(Graph, body, str(path)))


def _neighbours(graph: Graph, *, forward: bool) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {op.name: [] for op in graph.ops}
    for edge in graph.edges:
        here, there = (edge.source, edge.target) if forward else (edge.target, edge.source)
        found[here].append(there)
    return {name: tuple(others) for name, others in found.items()}


def _topological_order(graph: Graph) -> tuple[str, ...]:
    # Depth first from the sources, so that a branch stays together in the order.
    missing = {name: len(before) for name, before in graph.predecessors.items()}
    stack = [op.name for op in reversed(graph.ops) if not missing[op.name]]
    order: list[str] = []
    while stack:
        name = stack.pop()
        order.append(name)
        for successor in reversed(graph.successors[name]):
            missing[successor] -= 1
            if not missing[successor]:
                stack.append(successor)
    return tuple(order)
