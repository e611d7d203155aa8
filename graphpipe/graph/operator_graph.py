"""The operator graph: what a model computes, checked on construction."""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.documents import fingerprint, from_body, read_document, write_document
from graphpipe.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operator does with one sample, independent of any device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    flops_per_sample: float = 0.0
    """Floating-point operations of the forward pass; input and weight gradient cost as much each."""
    traffic_bytes_per_sample: float = 0.0
    """Bytes the forward pass reads and writes to device memory, parameters apart."""
    saved_bytes_per_sample: float = 0.0
    """Bytes the forward pass keeps for the backward pass (unique storages, parameters apart)."""
    kernels: int = 1
    """Kernel launches of the forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times that came with an imported graph, on its own, unrecorded device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    forward_seconds: float
    backward_seconds: float
    samples: int
    """Samples in the batch the times were taken with; other batch sizes are scaled linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One node: a call of one of the user's submodules, or a piece of glue between them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: str = "module"
    parameters: tuple[str, ...] = ()
    """Fully qualified parameter names, as in the user's module."""
    parameter_bytes: float = 0.0
    output_bytes_per_sample: float = 0.0
    work: Work = field(default_factory=Work)
    measured: Measured | None = None
    model_inputs: tuple[str, ...] = ()
    """Names of the model inputs this operator reads (they are at hand on every rank)."""
    trainable: bool = True
    """False when every parameter is frozen; operators without parameters do not matter."""
    whole_batch: bool = False
    """True when the operator needs the whole mini-batch at once (contrastive losses)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`source`'s output is read by `target`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    target: str
    bytes_per_sample: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A parameter that several operators hold: tied weights, or a submodule that is called twice."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """As in `Op.parameters`."""
    bytes: float
    trainable: bool = True
    """Then the stages that hold it sum its gradient, if they are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor the model takes; its first dimension is samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sample_shape: tuple[int, ...]
    """Shape without the first dimension."""
    dtype: str
    """As torch prints it, without `torch.`: float32, int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a graph was captured from a module, so that every rank can capture it again."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    method: str
    """`export` (torch.export) or `declared` (one operator per submodule of a DagModule)."""
    split: tuple[str, ...] = ()
    """Submodules whose own operators were split out."""
    opaque: tuple[str, ...] = ()
    """Submodules kept whole against the default granularity."""
    whole_batch: tuple[str, ...] = ()
    """Submodules or operators that need the whole mini-batch."""
    arguments: tuple[tuple[str, bool | int | float | str], ...] = ()
    """What the forward was given by name besides tensors."""
    outputs: tuple[str, ...] = ()
    """Which entries of what the forward returns are the model's output; empty for all of it."""


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
        _check(self)

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


def _check(graph: Graph) -> None:
    if not graph.ops:
        remedy = "A graph has at least one: look at what wrote it."
        raise InvalidInput("the graph has no operators", where=f"graph '{graph.name}'", remedy=remedy)
    _check_names(graph)
    for op in graph.ops:
        _check_costs(op)
    for edge in graph.edges:
        _check_amount(edge.bytes_per_sample, f"edge {edge.source} -> {edge.target}, bytes_per_sample")
    _check_shared(graph)
    if len(graph.order) < len(graph.ops):
        cycle = " -> ".join(_find_cycle(graph))
        where = f"graph '{graph.name}'"
        raise InvalidInput(f"the graph has a cycle: {cycle}", where=where, remedy="Take one of these edges out.")


def _check_names(graph: Graph) -> None:
    where = f"graph '{graph.name}'"
    for name, count in Counter(op.name for op in graph.ops).items():
        if count > 1:
            raise InvalidInput(f"{count} operators are named '{name}'", where=where, remedy="Names must be unique.")
    for (source, target), count in Counter((edge.source, edge.target) for edge in graph.edges).items():
        for end in (source, target):
            if end not in graph.index:
                what = f"edge {source} -> {target} names '{end}', which is no operator"
                raise InvalidInput(what, where=where, remedy="Add the operator, or take the edge out.")
        if count > 1:
            raise InvalidInput(
                f"edge {source} -> {target} is listed {count} times", where=where, remedy="List it once."
            )


def _check_shared(graph: Graph) -> None:
    for each in graph.shared:
        where = f"shared parameter '{each.name}'"
        _check_amount(each.bytes, f"{where}, bytes")
        if len(graph.holders[each.name]) < 2:
            holders = ", ".join(graph.holders[each.name]) or "none"
            raise InvalidInput(f"is held by fewer than two operators ({holders})", where=where)
        if sum(other.name == each.name for other in graph.shared) > 1:
            raise InvalidInput("is listed twice", where=where)


def _check_costs(op: Op) -> None:
    amounts = {
        "parameter_bytes": op.parameter_bytes,
        "output_bytes_per_sample": op.output_bytes_per_sample,
        "work.flops_per_sample": op.work.flops_per_sample,
        "work.traffic_bytes_per_sample": op.work.traffic_bytes_per_sample,
        "work.saved_bytes_per_sample": op.work.saved_bytes_per_sample,
        "work.kernels": op.work.kernels,
    }
    if op.measured is not None:
        amounts["measured.forward_seconds"] = op.measured.forward_seconds
        amounts["measured.backward_seconds"] = op.measured.backward_seconds
        if op.measured.samples < 1:
            raise InvalidInput(f"is {op.measured.samples}, must be at least 1", where=f"op {op.name}, measured.samples")
    for name, amount in amounts.items():
        _check_amount(amount, f"op {op.name}, {name}")


def _check_amount(amount: float, where: str) -> None:
    if not (math.isfinite(amount) and amount >= 0):
        raise InvalidInput(
            f"is {amount}, must be finite and not negative", where=where, remedy="Give 0 where it is unknown."
        )


def _find_cycle(graph: Graph) -> list[str]:
    # Every operator left out of the topological order has a predecessor that is left out too: walk back.
    left = set(graph.index) - set(graph.order)
    name = min(left)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = next(before for before in graph.predecessors[name] if before in left)
    cycle = seen[seen.index(name) :]
    return [name, *reversed(cycle)]
