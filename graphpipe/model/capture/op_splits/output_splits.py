"""Finds the operators of a captured model that can be split by outputs: linear layers and embeddings."""

from collections.abc import Sequence

from torch import fx, nn

from graphpipe.graph import Op, OpSplit
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.op_splits.layers import Layers, hooked, is_table, value_read


def find_output_splits(model: MeasuredModel, groups: Groups, ops: Sequence[Op]) -> dict[str, OpSplit]:
    """Return how operators can be split by outputs, by the operator's name.

    An operator can be split if
    1. it calls an `nn.Linear`, `nn.Embedding` or `nn.EmbeddingBag` itself, with one value: an input of the model or a
       part of it, or one that another operator computes and that nothing else in this operator reads;
    2. an embedding is all that the operator computes, has neither a largest norm nor sparse gradients, and a bag does
       not take the largest row;
    3. nothing else uses the layer or its weights, it does not have a hook, all its parameters are trained or none is,
       and it does not need the whole mini-batch.

    Args:
        model: the captured model.
        groups: the nodes of every operator.
        ops: the operators, in the same order.
    """
    layers = Layers.of(model, groups, ops)
    found: dict[str, OpSplit] = {}
    for op, group in zip(ops, groups, strict=True):
        for node in group:
            if _can_be_split(layers, node, group) and layers.may_be_split(op):
                split = _split(layers, op, node)
                found |= {op.name: split} if split is not None and op.name not in found else {}
    return found


def _can_be_split(layers: Layers, node: fx.Node, group: Sequence[fx.Node]) -> bool:
    if value_read(node) is None:
        return False
    layer = layers.module(node.target)
    if hooked(layer) or not layers.owns_parameters(layer):
        return False
    return type(layer) is nn.Linear or (is_table(layer) and len(group) == 1)


def _split(layers: Layers, op: Op, call: fx.Node) -> OpSplit | None:
    layer, value, result = layers.module(call.target), value_read(call), layers.model.readings[call]
    assert value is not None
    read = layers.only_read([call])
    if read is None or result.sample_shape is None:
        return None
    if layers.op_of.get(read) and (read is not value or layers.read_elsewhere(value, op, call)):
        return None
    weight = layer.get_parameter("weight")
    features = weight.shape[0 if isinstance(layer, nn.Linear) else 1]
    if features < 2:
        return None
    rows = result.bytes_per_sample / result.dtype.itemsize / features
    return OpSplit(
        op=op.name,
        by="outputs",
        kind=type(layer).__name__,  # pyright: ignore[reportArgumentType]
        layer=str(call.target),
        is_called=True,
        **layers.parameters(layer),
        flops_per_sample=2.0 * rows * weight.numel() if isinstance(layer, nn.Linear) else 0.0,
        output_bytes_per_sample=result.bytes_per_sample,
        branches=(layers.branch_through(read, value, features),),
    )
