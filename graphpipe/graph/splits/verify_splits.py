"""Verify the operators that a graph splits: their parts hold each feature or row once, and are joined once.

Everything is derived from the features or rows of each branch, and compared with the operators and edges of the graph.
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
        InvalidInput: a part is missing, has other features or rows, bytes, FLOPs or inputs than its branch, or feeds
            anything but the operator that was split; or the whole weight is still held somewhere.
    """
    for split in graph.origin.split_ops if graph.origin is not None else ():
        where = f"split of operator '{split.op}'"
        for name in (split.op, *split.parts):
            if name not in graph.index:
                raise InvalidInput(f"operator '{name}' is missing", where=where, remedy="Plan again.")
        _check_features(split, where)
        for number in range(len(split.branches)):
            _check_parameters(graph[split.parts[number]], split, number, where)
            _check_amounts(graph[split.parts[number]], split, number, where)
            _check_edges(graph, split, number, where)
        holders = [op.name for op in graph.ops if split.weight in op.parameters]
        if holders:
            raise InvalidInput(f"operator '{holders[0]}' still has the whole '{split.weight}'", where=where)


def _check_features(split: OpSplit, where: str) -> None:
    at, unit = 0, _unit(split)
    for number, branch in enumerate(split.branches):
        if branch.start != at or branch.stop <= branch.start:
            what = f"part {number} has {unit}s {branch.start} to {branch.stop}, must begin at {unit} {at}"
            raise InvalidInput(what, where=where, remedy=f"Every {unit} must be in one part.")
        at = branch.stop


def _unit(split: OpSplit) -> str:
    return "row" if split.by == "rows" else "feature"


def _check_parameters(part: Op, split: OpSplit, number: int, where: str) -> None:
    # Read from the names of the parameters, which decide what is trained and saved. A linear layer's weight has a row
    # for each output and a column for each input, an embedding's has a row for each index and a column for each output.
    start, stop = split.branches[number].start, split.branches[number].stop
    rows = split.by == "rows" or (split.by == "outputs" and split.kind == "Linear")
    wanted = {(split.weight, 0 if rows else 1, start, stop)}
    if split.bias is not None and split.by == "outputs":
        wanted.add((split.bias, 0, start, stop))
    pieces = [ParameterSlice.parse(name) for name in part.parameters]
    slices = {(piece.parameter, piece.dimension, piece.start, piece.stop) for piece in pieces if piece is not None}
    if slices != wanted:
        names = " and ".join(f"'{name}'" for name, *_ in sorted(wanted))
        held = ", ".join(part.parameters) or "nothing"
        what = f"part {number} has {held}, must have {_unit(split)}s {start} to {stop} of {names}"
        raise InvalidInput(what, where=where)
    if split.by == "inputs" and (split.bias in part.parameters) != (number == 0 and split.bias is not None):
        raise InvalidInput(f"the first part, and no other, must have the bias '{split.bias}'", where=where)


def _check_amounts(part: Op, split: OpSplit, number: int, where: str) -> None:
    branch = split.branches[number]
    share = (branch.stop - branch.start) / split.branches[-1].stop
    outputs = share if split.by == "outputs" else 1.0
    bias = share if split.by == "outputs" else float(number == 0)
    amounts = (
        ("parameter bytes", part.parameter_bytes, share * split.weight_bytes + bias * split.bias_bytes),
        ("FLOPs per sample", part.work.flops_per_sample, share * split.flops_per_sample),
        ("output bytes per sample", part.output_bytes_per_sample, outputs * split.output_bytes_per_sample),
    )
    for what, amount, expected in amounts:
        if abs(amount - expected) > _RELATIVE * max(1.0, expected):
            raise InvalidInput(f"part {number} has {amount:.0f} {what}, must have {expected:.0f}", where=where)


def _check_edges(graph: Graph, split: OpSplit, number: int, where: str) -> None:
    name, branch = split.parts[number], split.branches[number]
    sources = [] if branch.source is None else [((branch.source, branch.value), branch.bytes_per_sample)]
    reads = [(read.value, read.bytes_per_sample) for read in graph.reads if read.target == name]
    inputs = () if branch.model_input is None else (branch.model_input,)
    if reads != sources or graph[name].model_inputs != inputs:
        raise InvalidInput(f"part {number} must read only '{branch.source or branch.model_input}'", where=where)
    sent = [(edge.target, edge.bytes_per_sample) for edge in graph.edges if edge.source == name]
    if sent != [(split.op, graph[name].output_bytes_per_sample)]:
        raise InvalidInput(f"part {number} must send its result only to '{split.op}'", where=where)
