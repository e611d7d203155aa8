"""Splits operators of a graph: each becomes one operator per part, and the sum or concatenation of their results."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from graphpipe.errors import InvalidInput
from graphpipe.graph.op_split import OpSplit
from graphpipe.graph.operator import Edge, Op, Work
from graphpipe.graph.operator_graph import Graph

_LISTED = 8
"""Names that an error lists."""


def splittable(graph: Graph) -> tuple[OpSplit, ...]:
    """Return how the operators of a graph can be split, those with the most bytes of weights first."""
    return tuple(sorted((each for op in graph.ops for each in op.splits), key=lambda each: -each.weight_bytes))


def split_ops(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these operators split.

    The parts of layer `a.b` are operators `a.b.part0`, `a.b.part1` and so on. The operator that is split keeps its
    name. It adds or concatenates their results, and computes what follows. The graph's origin records what was split,
    so that every rank splits the model in the same way.

    Args:
        graph: captured from a model.
        names: of operators that concatenate branches, or `NAME:4` to split a layer by its outputs in 4 parts.

    Raises:
        InvalidInput: a name is not an operator of the graph, or the operator cannot be split.
    """
    return reduce(with_split, [find_split(graph, name) for name in dict.fromkeys(names)], graph)


def with_split(graph: Graph, split: OpSplit) -> Graph:
    """Return the graph with one operator split in one of the ways of its `Op.splits`."""
    assert graph.origin is not None, "only captured operators can be split"
    whole = graph[split.op]
    parts = [_part(whole, split, number) for number in range(len(split.branches))]
    ops = [each for op in graph.ops for each in ((*parts, _rest(whole, split)) if op is whole else (op,))]
    edges = [each for edge in graph.edges for each in _edges(edge, split)]
    edges += [Edge(source=part.name, target=split.op, bytes_per_sample=part.output_bytes_per_sample) for part in parts]
    origin = replace(graph.origin, split_ops=(*graph.origin.split_ops, split))
    return replace(graph, ops=tuple(ops), edges=tuple(edges), origin=origin)


def find_split(graph: Graph, name: str) -> OpSplit:
    """Return how an operator is split.

    Args:
        graph: with the operator.
        name: as for `split_ops`.

    Raises:
        InvalidInput: it is not an operator of the graph, or it cannot be split in this way.
    """
    op, _, parts = name.rpartition(":") if name.rpartition(":")[2].isdecimal() else (name, "", "")
    by = "outputs" if parts else "inputs"
    found = [each for each in graph[op].splits if each.by == by] if op in graph.index else []
    if not found:
        known = [each.op if each.by == "inputs" else f"{each.op}:2" for each in splittable(graph)]
        what = f"operator '{op}' cannot be split by its {by}" if op in graph.index else f"'{op}' is not an operator"
        listed = f"Operators that can be split: {', '.join(known[:_LISTED])}."
        remedy = listed if known else "This model does not have an operator that can be split."
        raise InvalidInput(what, where="split", remedy=remedy)
    if not parts:
        return found[0]
    features = found[0].branches[0].stop
    if not 2 <= int(parts) <= features:
        what = f"operator '{op}' cannot be split in {parts} parts, because it has {features} features"
        raise InvalidInput(what, where="split", remedy=f"Choose 2 to {features} parts.")
    return found[0].into(int(parts))


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
        work=_work_of_part(whole, split, number),
        model_inputs=(branch.model_input,) if branch.model_input is not None else (),
        trainable=whole.trainable,
    )


def _work_of_part(whole: Op, split: OpSplit, number: int) -> Work:
    branch, work = split.branches[number], whole.work
    share = split.share(branch)
    if split.kind != "Linear":  # an embedding is the whole operator, and each part reads and keeps all indices
        return replace(work, traffic_bytes_per_sample=share * work.traffic_bytes_per_sample)
    # By inputs, a value that another operator computed is saved for the gradient of the weight. By outputs, it counts
    # where it is made, because all parts save the same value. A model input is there anyway.
    saves = split.by == "inputs" and whole.trainable and branch.source is not None
    outputs = split.output_bytes_per_sample * (share if split.by == "outputs" else 1.0)
    return Work(
        flops_per_sample=share * split.flops_per_sample,
        traffic_bytes_per_sample=branch.bytes_per_sample + outputs,
        saved_bytes_per_sample=branch.bytes_per_sample if saves else 0.0,
        saved_bytes_per_forward=share * _cast_bytes(work, split) if branch.source is not None else 0.0,
        kernels=1,
    )


def _cast_bytes(work: Work, split: OpSplit) -> float:
    # Autocast copies a weight in half as many bytes, and the backward needs the copy for the gradient of the input.
    return min(work.saved_bytes_per_forward, split.weight_bytes / 2)


def _rest(whole: Op, split: OpSplit) -> Op:
    # What is left of the operator, behind the sum or the concatenation.
    parameters = tuple(name for name in whole.parameters if name not in (split.weight, split.bias))
    read = {branch.model_input for branch in split.branches}
    return replace(
        whole,
        parameters=parameters,
        parameter_bytes=whole.parameter_bytes - split.weight_bytes - split.bias_bytes,
        work=_work_of_rest(whole.work, split),
        model_inputs=tuple(name for name in whole.model_inputs if name not in read),
        trainable=whole.trainable or not parameters,
        splits=(),
    )


def _work_of_rest(work: Work, split: OpSplit) -> Work:
    inputs, outputs, parts = split.input_bytes_per_sample, split.output_bytes_per_sample, len(split.branches)
    if split.kind != "Linear":
        return Work(traffic_bytes_per_sample=2 * outputs)
    if split.by == "outputs":  # a concatenation in place of the product
        gone, added, kernels = inputs + outputs, 2 * outputs, (1, 1)
    else:  # Concatenation and product are gone. Each addition reads two values and writes one.
        gone, added, kernels = 3 * inputs + outputs, 3 * outputs * (parts - 1), (2, parts - 1)
    return Work(
        flops_per_sample=work.flops_per_sample - split.flops_per_sample,
        traffic_bytes_per_sample=max(0.0, work.traffic_bytes_per_sample - gone) + added,
        saved_bytes_per_sample=max(0.0, work.saved_bytes_per_sample - (inputs if split.by == "inputs" else 0.0)),
        saved_bytes_per_forward=work.saved_bytes_per_forward - _cast_bytes(work, split),
        kernels=max(0, work.kernels - kernels[0]) + kernels[1],
    )


def _edges(edge: Edge, split: OpSplit) -> list[Edge]:
    # An edge to the operator goes to the parts that read its value. What else the operator reads goes to the rest.
    if edge.target != split.op:
        return [edge]
    found = [(part, each) for part, each in zip(split.parts, split.branches, strict=True) if each.source == edge.source]
    taken = {each.value for _, each in found}
    to_parts = [
        replace(
            edge,
            target=part,
            bytes_per_sample=each.bytes_per_sample,
            values=tuple(value for value in edge.values if value.name == each.value),
        )
        for part, each in found
    ]
    left = edge.bytes_per_sample - max((each.bytes_per_sample for _, each in found), default=0.0)
    rest = tuple(value for value in edge.values if value.name not in taken)
    return [*to_parts, *([replace(edge, bytes_per_sample=left, values=rest)] if left > 0 or not found else [])]
