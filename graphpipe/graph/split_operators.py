"""Splits operators of a graph: each becomes one operator per branch, and the sum of their results."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from graphpipe.errors import InvalidInput
from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator import Edge, Op, Work
from graphpipe.graph.operator_graph import Graph

PART_KIND = "LinearPart"
_LISTED = 8
"""Names that an error lists."""


def splittable(graph: Graph) -> tuple[OpSplit, ...]:
    """Return how the operators of a graph can be split, those with the most bytes of weights first."""
    return tuple(sorted((each for op in graph.ops for each in op.splits), key=lambda each: -each.weight_bytes))


def split_ops(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these operators split.

    The parts of linear layer `a.b` are operators `a.b.part0`, `a.b.part1` and so on. The operator that is split keeps
    its name. It adds their results and computes what follows. The graph's origin records what was split, so that every
    rank splits the model in the same way.

    Args:
        graph: captured from a model.
        names: of operators.

    Raises:
        InvalidInput: a name is not an operator of the graph, or the operator cannot be split.
    """
    return reduce(with_split, [find_split(graph, name) for name in dict.fromkeys(names)], graph)


def with_split(graph: Graph, split: OpSplit) -> Graph:
    """Return the graph with one operator split in one of the ways of its `Op.splits`."""
    assert graph.origin is not None, "only captured operators can be split"
    whole = graph[split.op]
    parts = [_part(whole, split, number) for number in range(len(split.branches))]
    ops = [each for op in graph.ops for each in ((*parts, _sum(whole, split)) if op is whole else (op,))]
    edges = [each for edge in graph.edges for each in _edges(edge, split)]
    edges += [
        Edge(source=part, target=split.op, bytes_per_sample=split.output_bytes_per_sample) for part in split.parts
    ]
    origin = replace(graph.origin, split_ops=(*graph.origin.split_ops, split))
    return replace(graph, ops=tuple(ops), edges=tuple(edges), origin=origin)


def find_split(graph: Graph, name: str) -> OpSplit:
    """Return how an operator can be split.

    Raises:
        InvalidInput: it is not an operator of the graph, or it cannot be split.
    """
    known = [each.op for each in splittable(graph)]
    if name not in known:
        what = f"operator '{name}' cannot be split" if name in graph.index else f"'{name}' is not an operator"
        listed = f"Operators that can be split: {', '.join(known[:_LISTED])}."
        remedy = listed if known else "This model does not have an operator that can be split."
        raise InvalidInput(what, where="split", remedy=remedy)
    return graph[name].splits[0]


def _part(whole: Op, split: OpSplit, number: int) -> Op:
    branch, biased = split.branches[number], split.bias is not None and number == 0
    share = split.share(branch)
    # A value that another operator computed is saved for the gradient of the weight. A model input is there anyway.
    saved = branch.bytes_per_sample if whole.trainable and branch.source is not None else 0.0
    return Op(
        name=split.parts[number],
        kind=PART_KIND,
        parameters=tuple(sorted([split.slices[number].name, *([split.bias] if split.bias and biased else [])])),
        parameter_bytes=share * split.weight_bytes + (split.bias_bytes if biased else 0.0),
        output_bytes_per_sample=split.output_bytes_per_sample,
        work=Work(
            flops_per_sample=share * split.flops_per_sample,
            traffic_bytes_per_sample=branch.bytes_per_sample + split.output_bytes_per_sample,
            saved_bytes_per_sample=saved,
            kernels=1,
        ),
        model_inputs=(branch.model_input,) if branch.model_input is not None else (),
        trainable=whole.trainable,
    )


def _sum(whole: Op, split: OpSplit) -> Op:
    # What is left of the operator. Concatenation and product are gone. Each addition reads two values and writes one.
    inputs, outputs, work = split.input_bytes_per_sample, split.output_bytes_per_sample, whole.work
    additions = len(split.branches) - 1
    parameters = tuple(name for name in whole.parameters if name not in (split.weight, split.bias))
    read = {branch.model_input for branch in split.branches}
    return replace(
        whole,
        parameters=parameters,
        parameter_bytes=whole.parameter_bytes - split.weight_bytes - split.bias_bytes,
        work=Work(
            flops_per_sample=work.flops_per_sample - split.flops_per_sample,
            traffic_bytes_per_sample=max(0.0, work.traffic_bytes_per_sample - 3 * inputs - outputs)
            + 3 * outputs * additions,
            saved_bytes_per_sample=max(0.0, work.saved_bytes_per_sample - inputs),
            kernels=max(0, work.kernels - 2) + additions,
        ),
        model_inputs=tuple(name for name in whole.model_inputs if name not in read),
        trainable=whole.trainable or not parameters,
        splits=(),
    )


def _edges(edge: Edge, split: OpSplit) -> list[Edge]:
    # An edge to the operator goes to the part of its branch. What else the operator reads goes to the sum.
    if edge.target != split.op:
        return [edge]
    found = [(part, each) for part, each in zip(split.parts, split.branches, strict=True) if each.source == edge.source]
    left = edge.bytes_per_sample - sum(each.bytes_per_sample for _, each in found)
    to_parts = [replace(edge, target=part, bytes_per_sample=each.bytes_per_sample) for part, each in found]
    return [*to_parts, *([replace(edge, bytes_per_sample=left)] if left > 0 or not found else [])]
