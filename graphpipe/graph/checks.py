"""What a graph must be: unique names, sane numbers, no cycle."""

import math
from collections import Counter
from typing import TYPE_CHECKING

from graphpipe.errors import InvalidInput
from graphpipe.graph.operator import Op

if TYPE_CHECKING:
    from graphpipe.graph.operator_graph import Graph


def check_graph(graph: "Graph") -> None:
    """Check a graph.

    Raises:
        InvalidInput: see `Graph`.
    """
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


def _check_names(graph: "Graph") -> None:
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


def _check_shared(graph: "Graph") -> None:
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


def _find_cycle(graph: "Graph") -> list[str]:
    # Every operator left out of the topological order has a predecessor that is left out too: walk back.
    left = set(graph.index) - set(graph.order)
    name = min(left)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = next(before for before in graph.predecessors[name] if before in left)
    cycle = seen[seen.index(name) :]
    return [name, *reversed(cycle)]
