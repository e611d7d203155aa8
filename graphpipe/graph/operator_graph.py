"""The operator graph of a model, checked on construction."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput, check_not_negative
from graphpipe.files.json_body import digest, from_body, to_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.graph.operator import Edge, Input, InputLayout, Op, Origin, Read, Shared

_FOLLOWS = {"ops": ("splits", "without_gradient", "mixes", "shards"), "edges": ("values",)}
"""What fingerprints leave out."""


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Graph:
    """A directed acyclic graph of operators.

    Raises:
        InvalidInput: a graph without operators, a duplicate name, an edge to an unknown operator, a duplicate edge, a
            cycle (one is spelled out), a negative, infinite or NaN cost, or a shared parameter that fewer than two
            operators hold.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[Input, ...] = ()
    """The inputs of the model; empty for an imported graph."""
    origin: Origin | None = None
    """How the graph was captured; None for a graph without a module (imported, or written by hand)."""
    shared: tuple[Shared, ...] = ()
    """Parameters of more than one operator. All operators of an unlisted one must be in the same stage."""

    def __post_init__(self) -> None:
        _check_graph(self)

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
    def reads(self) -> tuple[Read, ...]:
        """The values of all edges, in edge order. A stage needs each value once, however many operators read it."""
        return tuple(read for edge in self.edges for read in edge.reads)

    @cached_property
    def numbered_reads(self) -> tuple[tuple[int, int, int, float], ...]:
        """`reads` in numbers, for callers that look at all of them often.

        The positions of both operators in `ops`, the number of the value, and the bytes per sample.
        """
        numbers = {value: number for number, value in enumerate(dict.fromkeys(read.value for read in self.reads))}
        index = self.index
        return tuple(
            (index[read.source], index[read.target], numbers[read.value], read.bytes_per_sample) for read in self.reads
        )

    @cached_property
    def order(self) -> tuple[str, ...]:
        """A topological order of the operator names, the same on every machine."""
        return _topological_order(self)

    @cached_property
    def training(self) -> frozenset[str]:
        """Names of the operators that have parameters which are not all frozen.

        If a graph does not list any parameters (written by hand), all of its operators train.
        """
        silent = not any(op.parameters or op.parameter_bytes for op in self.ops)
        held = (op for op in self.ops if silent or op.parameters or op.parameter_bytes)
        return frozenset(op.name for op in held if op.trainable)

    @cached_property
    def differentiable(self) -> frozenset[str]:
        """Names of the operators whose outputs get a gradient, because they or operators before them train."""
        before: dict[str, list[Read]] = {op.name: [] for op in self.ops}
        for read in self.reads:
            before[read.target].append(read)
        trained: set[str] = set()
        for name in self.order:
            if name in self.training or any(
                edge.source in trained and not self._is_constant(edge) for edge in before[name]
            ):
                trained.add(name)
        return frozenset(trained)

    @cached_property
    def whole_batch_tail(self) -> frozenset[str]:
        """Names of the operators that need the whole mini-batch at once, and of all operators after them."""
        inside: set[str] = set()
        for name in self.order:
            if self[name].whole_batch or not inside.isdisjoint(self.predecessors[name]):
                inside.add(name)
        return frozenset(inside)

    @cached_property
    def one_way(self) -> frozenset[tuple[str, str]]:
        """The values that get no gradient, as `Read.value`: those of frozen branches, masks, indices and the like."""
        return frozenset(
            read.value for read in self.reads if read.source not in self.differentiable or self._is_constant(read)
        )

    @cached_property
    def returning(self) -> frozenset[str]:
        """Names of the operators that compute a gradient of something that they read."""
        return frozenset(read.target for read in self.reads if read.value not in self.one_way)

    def _is_constant(self, read: Read) -> bool:
        return read.value[1] in self[read.source].without_gradient

    @cached_property
    def holders(self) -> dict[str, tuple[str, ...]]:
        """Names of the operators that hold each shared parameter, in order of `ops`."""
        ops_by_parameter: dict[str, list[str]] = {parameter.name: [] for parameter in self.shared}
        for op in self.ops:
            for name in op.parameters:
                if name in ops_by_parameter:
                    ops_by_parameter[name].append(op.name)
        return {name: tuple(ops) for name, ops in ops_by_parameter.items()}

    @cached_property
    def input_layout(self) -> InputLayout:
        """Which tensors the model takes, and in which containers."""
        names = tuple(given.name for given in self.inputs)
        return InputLayout(names=names, parts=self.origin.parts if self.origin is not None else ())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this graph, without the ways in which operators can be split."""
        return digest(fingerprinted(to_body(self)))

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


def fingerprinted(graph: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a graph as fingerprints use it.

    What can be split follows from the rest of the model, and so do the values on edges. Graphs of schema version 1 did
    not say these, nor what was split, nor for which precision they were captured, nor the forms of inputs, nor whether
    the modes differ.
    """
    body = graph | {key: [_without(part, *left_out) for part in graph[key]] for key, left_out in _FOLLOWS.items()}
    if graph.get("origin"):
        splits = [
            split | {"branches": [_without(branch, "value") for branch in split["branches"]]}
            for split in graph["origin"].get("split_ops", ())
        ]
        plain = ["precision"] if graph["origin"].get("precision") in (None, "fp32") else []
        plain += [name for name in ("forms", "modes_differ") if not graph["origin"].get(name)]
        body["origin"] = _without(graph["origin"], "split_ops", *plain) | ({"split_ops": splits} if splits else {})
    body["ops"] = [_without_default_work(op) for op in body["ops"]]
    return body


def _without_default_work(op: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(work := op.get("work"), dict) or work.get("saved_bytes_per_forward"):
        return op
    return op | {"work": _without(work, "saved_bytes_per_forward")}


def _without(body: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {field: value for field, value in body.items() if field not in left_out}


def _neighbours(graph: Graph, *, forward: bool) -> dict[str, tuple[str, ...]]:
    neighbours: dict[str, list[str]] = {op.name: [] for op in graph.ops}
    for edge in graph.edges:
        here, there = (edge.source, edge.target) if forward else (edge.target, edge.source)
        neighbours[here].append(there)
    return {name: tuple(others) for name, others in neighbours.items()}


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


def _check_graph(graph: Graph) -> None:
    """Check a graph.

    Raises:
        InvalidInput: see `Graph`.
    """
    if not graph.ops:
        remedy = "A graph needs at least one. Check the program that wrote it."
        raise InvalidInput("the graph has no operators", where=f"graph '{graph.name}'", remedy=remedy)
    _check_names(graph)
    for op in graph.ops:
        _check_costs(op)
    for edge in graph.edges:
        _check_amount(edge.bytes_per_sample, f"edge {edge.source} -> {edge.target}, bytes_per_sample")
    _check_values(graph)
    _check_shared(graph)
    if len(graph.order) < len(graph.ops):
        cycle = " -> ".join(_find_cycle(graph))
        where = f"graph '{graph.name}'"
        raise InvalidInput(f"the graph has a cycle: {cycle}", where=where, remedy="Remove one of these edges.")


def _check_names(graph: Graph) -> None:
    where = f"graph '{graph.name}'"
    for name, count in Counter(op.name for op in graph.ops).items():
        if count > 1:
            raise InvalidInput(f"{count} operators are named '{name}'", where=where, remedy="Names must be unique.")
    for (source, target), count in Counter((edge.source, edge.target) for edge in graph.edges).items():
        for end in (source, target):
            if end not in graph.index:
                what = f"edge {source} -> {target} names '{end}', which is not an operator"
                raise InvalidInput(what, where=where, remedy="Add the operator, or remove the edge.")
        if count > 1:
            raise InvalidInput(
                f"edge {source} -> {target} is listed {count} times", where=where, remedy="List it once."
            )


def _check_values(graph: Graph) -> None:
    sizes: dict[tuple[str, str], float] = {}
    listed: dict[str, bool] = {}
    for edge in graph.edges:
        where = f"edge {edge.source} -> {edge.target}"
        if listed.setdefault(edge.source, bool(edge.values)) != bool(edge.values):
            remedy = "List the values of every edge from this operator, or of none."
            raise InvalidInput("lists values, or another edge of its source does", where=where, remedy=remedy)
        for read in edge.reads:
            _check_amount(read.bytes_per_sample, f"{where}, value '{read.value[1]}'")
            if edge.values and sizes.setdefault(read.value, read.bytes_per_sample) != read.bytes_per_sample:
                both = f"{read.bytes_per_sample:g} bytes per sample here and {sizes[read.value]:g} on another edge"
                raise InvalidInput(f"value '{read.value[1]}' has {both}", where=where)
        total = sum(value.bytes_per_sample for value in edge.values)
        if len({value.name for value in edge.values}) < len(edge.values):
            raise InvalidInput("lists a value twice", where=where)
        if edge.values and not math.isclose(total, edge.bytes_per_sample, rel_tol=1e-6):
            what = f"has {edge.bytes_per_sample:g} bytes per sample, but its values have {total:g}"
            raise InvalidInput(what, where=where)


def _check_shared(graph: Graph) -> None:
    for parameter in graph.shared:
        where = f"shared parameter '{parameter.name}'"
        _check_amount(parameter.bytes, f"{where}, bytes")
        if len(graph.holders[parameter.name]) < 2:
            holders = ", ".join(graph.holders[parameter.name]) or "none"
            raise InvalidInput(f"is held by fewer than two operators ({holders})", where=where)
        if sum(other.name == parameter.name for other in graph.shared) > 1:
            raise InvalidInput("is listed twice", where=where)


def _check_costs(op: Op) -> None:
    amounts = {
        "parameter_bytes": op.parameter_bytes,
        "output_bytes_per_sample": op.output_bytes_per_sample,
        "work.flops_per_sample": op.work.flops_per_sample,
        "work.traffic_bytes_per_sample": op.work.traffic_bytes_per_sample,
        "work.traffic_bytes_per_forward": op.work.traffic_bytes_per_forward,
        "work.saved_bytes_per_sample": op.work.saved_bytes_per_sample,
        "work.saved_bytes_per_forward": op.work.saved_bytes_per_forward,
        "work.kernels": op.work.kernels,
        "work.step_kernels": op.work.step_kernels,
    }
    if op.measured is not None:
        amounts["measured.forward_seconds"] = op.measured.forward_seconds
        amounts["measured.backward_seconds"] = op.measured.backward_seconds
        if op.measured.samples < 1:
            raise InvalidInput(f"is {op.measured.samples}, must be at least 1", where=f"op {op.name}, measured.samples")
    for name, amount in amounts.items():
        _check_amount(amount, f"op {op.name}, {name}")


def _check_amount(amount: float, where: str) -> None:
    check_not_negative(amount, where, "Give 0 where it is unknown.")


def _find_cycle(graph: Graph) -> list[str]:
    # Every operator outside the topological order has a predecessor that is also outside it, so walk back.
    left = set(graph.index) - set(graph.order)
    name = min(left)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = next(before for before in graph.predecessors[name] if before in left)
    cycle = seen[seen.index(name) :]
    return [name, *reversed(cycle)]
