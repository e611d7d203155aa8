"""Splits operators of a graph: each becomes one operator per part, and the sum or concatenation of their results."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from graphpipe.errors import InvalidInput
from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator import Edge, Op
from graphpipe.graph.operator_graph import Graph
from graphpipe.graph.splits.split_names import find_split
from graphpipe.graph.splits.split_work import work_of_part, work_of_rest


def split_ops(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these operators split.

    The parts of layer `a.b` are operators `a.b.part0`, `a.b.part1` and so on. The operator that is split keeps its
    name. It adds or concatenates their results, and computes what follows. The graph's origin records what was split,
    so that every rank splits the model in the same way.

    Args:
        graph: captured from a model.
        names: as for `find_split`.

    Raises:
        InvalidInput: a name is not an operator of the graph, or the operator cannot be split or is named twice.
    """
    return reduce(with_split, [find_split(graph, name) for name in dict.fromkeys(names)], graph)


def with_split(graph: Graph, split: OpSplit) -> Graph:
    """Return the graph with one operator split in one of the ways of its `Op.splits`.

    Raises:
        InvalidInput: it is split already.
    """
    assert graph.origin is not None, "only captured operators can be split"
    if split.op in [done.op for done in graph.origin.split_ops]:
        raise InvalidInput(f"operator '{split.op}' is to be split twice", where="split", remedy="Name it once.")
    whole = graph[split.op]
    parts = [_part(whole, split, number) for number in range(len(split.branches))]
    ops = [new for op in graph.ops for new in ((*parts, _rest(whole, split)) if op is whole else (op,))]
    edges = [new for edge in graph.edges for new in _edges(edge, split)]
    edges += [Edge(source=part.name, target=split.op, bytes_per_sample=part.output_bytes_per_sample) for part in parts]
    origin = replace(graph.origin, split_ops=(*graph.origin.split_ops, split))
    return replace(graph, ops=tuple(ops), edges=tuple(edges), origin=origin)


def _part(whole: Op, split: OpSplit, number: int) -> Op:
    branch, names = split.branches[number], [split.slices[number].name]
    share, bias, outputs = split.share(branch), 0.0, split.output_bytes_per_sample
    if split.by == "outputs":
        outputs, bias = share * outputs, share * split.bias_bytes
        names += [piece.name for piece in split.bias_slices[number : number + 1]]
    elif number == 0 and split.bias is not None:
        names, bias = [*names, split.bias], split.bias_bytes
    return Op(
        name=split.parts[number],
        kind=f"{split.kind}Part",
        parameters=tuple(sorted(names)),
        parameter_bytes=share * split.weight_bytes + bias,
        output_bytes_per_sample=outputs,
        work=work_of_part(whole, split, number),
        model_inputs=(branch.model_input,) if branch.model_input is not None else (),
        trainable=whole.trainable,
    )


def _rest(whole: Op, split: OpSplit) -> Op:
    # What is left of the operator, behind the sum or the concatenation.
    parameters = tuple(name for name in whole.parameters if name not in (split.weight, split.bias))
    read = {branch.model_input for branch in split.branches}
    return replace(
        whole,
        parameters=parameters,
        parameter_bytes=whole.parameter_bytes - split.weight_bytes - split.bias_bytes,
        work=work_of_rest(whole.work, split),
        model_inputs=tuple(name for name in whole.model_inputs if name not in read),
        trainable=whole.trainable or not parameters,
        splits=(),
    )


def _edges(edge: Edge, split: OpSplit) -> list[Edge]:
    # An edge to the operator goes to the parts that read its value. What else the operator reads goes to the rest.
    if edge.target != split.op:
        return [edge]
    parts = [pair for pair in zip(split.parts, split.branches, strict=True) if pair[1].source == edge.source]
    taken = {branch.value for _, branch in parts}
    to_parts = [
        replace(
            edge,
            target=part,
            bytes_per_sample=branch.bytes_per_sample,
            values=tuple(value for value in edge.values if value.name == branch.value),
        )
        for part, branch in parts
    ]
    left = edge.bytes_per_sample - max((branch.bytes_per_sample for _, branch in parts), default=0.0)
    rest = tuple(value for value in edge.values if value.name not in taken)
    return [*to_parts, *([replace(edge, bytes_per_sample=left, values=rest)] if left > 0 or not parts else [])]
