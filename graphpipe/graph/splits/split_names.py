"""What a person writes to split operators: `head`, `bag0:4` or `bag0:rows4`."""

import re
from typing import Literal

from graphpipe.errors import InvalidInput
from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator_graph import Graph

_LISTED = 8
"""Names that an error lists."""
_WAY = re.compile(r"(?P<rows>rows)?(?P<parts>\d+)")


def splittable(graph: Graph) -> tuple[OpSplit, ...]:
    """Return how the operators of a graph can be split, those with the most bytes of weights first."""
    return tuple(sorted((split for op in graph.ops for split in op.splits), key=lambda split: -split.weight_bytes))


def find_split(graph: Graph, name: str) -> OpSplit:
    """Return how an operator is split.

    Args:
        graph: with the operator.
        name: of an operator that concatenates branches, `NAME:4` to split a layer by its outputs in 4 parts, or
            `NAME:rows4` to split an embedding by its rows in 4 parts.

    Raises:
        InvalidInput: it is not an operator of the graph, or it cannot be split in this way.
    """
    op, by, parts = _parsed(graph, name)
    split = next((split for split in graph[op].splits if split.by == by), None) if op in graph.index else None
    if split is None:
        raise _cannot_be_split(graph, op, by)
    if by == "inputs":
        return split
    most, what = split.branches[0].stop, "rows" if by == "rows" else "features"
    if not 2 <= parts <= most:
        refused = f"operator '{op}' cannot be split in {parts} parts, because it has {most} {what}"
        raise InvalidInput(refused, where="split", remedy=f"Choose 2 to {most} parts.")
    return split.into(parts)


def _parsed(graph: Graph, name: str) -> tuple[str, Literal["inputs", "outputs", "rows"], int]:
    op, _, way = name.rpartition(":")
    if not op or name in graph.index:
        return name, "inputs", 0
    match = _WAY.fullmatch(way)
    if match is None:
        what = f"'{name}' does not say how '{op}' is split"
        remedy = f"Write {op}:4 for 4 parts by its outputs, or {op}:rows4 for 4 parts by the rows of an embedding."
        raise InvalidInput(what, where="split", remedy=remedy)
    return op, "rows" if match["rows"] else "outputs", int(match["parts"])


def _cannot_be_split(graph: Graph, op: str, by: str) -> InvalidInput:
    around = next((other.name for other in graph.ops for name in other.parameters if name.startswith(f"{op}.")), op)
    if op not in graph.index and around != op:
        remedy = f"Capture the model with a look into '{around}': `--look-into {around}`."
        return InvalidInput(f"'{op}' is inside operator '{around}'", where="split", remedy=remedy)
    what = f"operator '{op}' cannot be split by its {by}" if op in graph.index else f"'{op}' is not an operator"
    others = sorted(splittable(graph), key=lambda split: split.op != op)  # its own other ways first
    known = [_example(split) for split in others[:_LISTED]]
    listed = f"Operators that can be split: {', '.join(known)}."
    return InvalidInput(
        what, where="split", remedy=listed if known else "This model does not have an operator that can be split."
    )


def _example(split: OpSplit) -> str:
    return split.op + {"inputs": "", "outputs": ":2", "rows": ":rows2"}[split.by]
