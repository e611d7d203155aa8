"""The numbers of devices for which operators are measured, if several share each replica of a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphpipe.costs.op_cost import OpCost
from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph


def operators_of(graph: Graph, ranks: int) -> int:
    """Return how many operators so many devices can share."""
    return sum(op.shards is not None and op.shards.shared_by(ranks) for op in graph.ops)


def dividing_sequence(graph: Graph, ops: Sequence[str], ranks: int) -> tuple[str, ...]:
    """Return the operators among some in which so many devices divide the sequence, as the plan asks."""
    found = ((op, graph[op].shards) for op in ops) if ranks > 1 else ()
    return tuple(op for op, shards in found if shards is not None and shards.divides_sequence(ranks))


def operators_by_degree(graph: Graph, tensor: Sequence[int]) -> dict[int, int]:
    """Return how many operators are measured for each number of devices, ascending. One device computes all of them.

    Args:
        graph: of the model.
        tensor: numbers of devices that share a replica.

    Raises:
        InvalidInput: so many devices can share no operator.
    """
    found = {1: len(graph.ops)}
    for ranks in sorted({*tensor} - {1}):
        found[ranks] = operators_of(graph, ranks)
        if not found[ranks]:
            most = sorted({op.shards.most for op in graph.ops if op.shards is not None})
            what = f"has {ranks}, but {ranks} devices can share no operator of '{graph.name}'"
            remedy = "Find layouts with gp.with_shards, or leave tensor out."
            if most:
                remedy = f"Choose divisors of {', '.join(map(str, most))}."
            raise InvalidInput(what, where="profile, tensor", remedy=remedy)
    return found


def with_degrees(rows: Mapping[int, Sequence[OpCost]]) -> tuple[OpCost, ...]:
    """Return the costs of one device, which include those of each of several devices.

    Args:
        rows: by number of devices, ascending from 1.
    """
    shared: dict[str, list[OpCost]] = {}
    for ranks, found in rows.items():
        for row in found if ranks > 1 else ():
            shared.setdefault(row.op, []).append(replace(row, ranks=ranks))
    return tuple(replace(row, shared=tuple(shared.get(row.op, ()))) for row in rows[1])
