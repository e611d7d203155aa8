"""Verify the operators that a graph splits: their parts hold each column of the layer once, and are added once.

Everything is derived from the columns of each branch, and compared with the operators and edges of the graph.
"""

from graphpipe.errors import InvalidInput
from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator import Op
from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.parameter_slice import ParameterSlice

_RELATIVE = 1e-9


def check_splits(graph: Graph) -> None:
    """Check the operators that the graph says were split.

    Raises:
        InvalidInput: a part is missing, has other columns, bytes, FLOPs or inputs than its branch, or feeds anything
            but the sum; or the whole weight is still held somewhere.
    """
    for split in graph.origin.split_ops if graph.origin is not None else ():
        where = f"split of operator '{split.op}'"
        for name in (split.op, *split.parts):
            if name not in graph.index:
                raise InvalidInput(f"operator '{name}' is missing", where=where, remedy="Plan again.")
        _check_columns(graph, split, where)
        for number, name in enumerate(split.parts):
            _check_amounts(graph[name], split, number, where)
            _check_edges(graph, split, number, where)
        holders = [op.name for op in graph.ops if split.weight in op.parameters]
        if holders:
            raise InvalidInput(f"operator '{holders[0]}' still has the whole '{split.weight}'", where=where)


def _check_columns(graph: Graph, split: OpSplit, where: str) -> None:
    # Read from the names of the parts' parameters, which decide what is trained and saved.
    at = 0
    for name, branch in zip(split.parts, split.branches, strict=True):
        pieces = [ParameterSlice.parse(each) for each in graph[name].parameters]
        own = [piece for piece in pieces if piece is not None and piece.parameter == split.weight]
        if [(piece.dimension, piece.start, piece.stop) for piece in own] != [(1, branch.start, branch.stop)]:
            held = ", ".join(graph[name].parameters) or "nothing"
            what = f"part '{name}' has {held}, must have columns {branch.start} to {branch.stop} of '{split.weight}'"
            raise InvalidInput(what, where=where)
        if branch.start != at or branch.stop <= branch.start:
            what = f"part '{name}' has columns {branch.start} to {branch.stop}, must begin at column {at}"
            raise InvalidInput(what, where=where, remedy="Every column must be in one part.")
        at = branch.stop


def _check_amounts(part: Op, split: OpSplit, number: int, where: str) -> None:
    branch = split.branches[number]
    share = (branch.stop - branch.start) / split.branches[-1].stop
    bias = split.bias_bytes if number == 0 else 0.0
    amounts = (
        ("parameter bytes", part.parameter_bytes, share * split.weight_bytes + bias),
        ("FLOPs per sample", part.work.flops_per_sample, share * split.flops_per_sample),
        ("output bytes per sample", part.output_bytes_per_sample, split.output_bytes_per_sample),
    )
    for what, found, expected in amounts:
        if abs(found - expected) > _RELATIVE * max(1.0, expected):
            raise InvalidInput(f"part '{part.name}' has {found:.0f} {what}, must have {expected:.0f}", where=where)
    if (split.bias in part.parameters) != (number == 0 and split.bias is not None):
        raise InvalidInput(f"the first part, and no other, must have the bias '{split.bias}'", where=where)


def _check_edges(graph: Graph, split: OpSplit, number: int, where: str) -> None:
    name, branch = split.parts[number], split.branches[number]
    sources = [] if branch.source is None else [(branch.source, branch.bytes_per_sample)]
    found = [(edge.source, edge.bytes_per_sample) for edge in graph.edges if edge.target == name]
    inputs = () if branch.model_input is None else (branch.model_input,)
    if found != sources or graph[name].model_inputs != inputs:
        raise InvalidInput(f"part '{name}' must read only '{branch.source or branch.model_input}'", where=where)
    sent = [(edge.target, edge.bytes_per_sample) for edge in graph.edges if edge.source == name]
    if sent != [(split.op, split.output_bytes_per_sample)]:
        raise InvalidInput(f"part '{name}' must send its result only to '{split.op}'", where=where)
