"""Finds the operators of a captured model that can be split by outputs: linear layers and embeddings."""

from collections.abc import Mapping, Sequence

from torch import fx, nn

from graphpipe.graph import Op, OpSplit, SplitBranch
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.op_splits.input_splits import hooked, trained_alike, users_of_parameters


def find_output_splits(model: MeasuredModel, groups: Groups, ops: Sequence[Op]) -> dict[str, OpSplit]:
    """Return how operators can be split by outputs, by the operator's name.

    An operator can be split if
    1. it calls an `nn.Linear`, `nn.Embedding` or `nn.EmbeddingBag` itself, with one value: an input of the model, or
       one that another operator computes and that nothing else in this operator reads;
    2. an embedding is all that the operator computes, has neither a largest norm nor sparse gradients, and a bag does
       not take the largest row;
    3. nothing else uses the layer or its weights, it does not have a hook, all its parameters are trained or none is,
       and it does not need the whole mini-batch.

    Args:
        model: the captured model.
        groups: the nodes of every operator.
        ops: the operators, in the same order.
    """
    where = {node: op.name for op, group in zip(ops, groups, strict=True) for node in group}
    users = users_of_parameters(model)
    found: dict[str, OpSplit] = {}
    for op, group in zip(ops, groups, strict=True):
        for node in group:
            if _can_be_split(model, node, group, users) and not op.whole_batch and trained_alike(model, op):
                split = _split(model, op, node, where)
                found |= {op.name: split} if split is not None and op.name not in found else {}
    return found


def _can_be_split(model: MeasuredModel, node: fx.Node, group: Sequence[fx.Node], users: Mapping[int, int]) -> bool:
    if node.op != "call_module" or node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return False
    layer = model.module.get_submodule(str(node.target))
    if hooked(layer) or any(users[id(each)] != 1 for each in layer.parameters()):
        return False
    if type(layer) is nn.Linear:
        return True
    embeds = type(layer) is nn.Embedding or (type(layer) is nn.EmbeddingBag and layer.mode != "max")
    assert isinstance(layer, nn.Embedding | nn.EmbeddingBag) or not embeds
    return embeds and len(group) == 1 and layer.max_norm is None and not layer.sparse


def _split(model: MeasuredModel, op: Op, call: fx.Node, where: Mapping[fx.Node, str]) -> OpSplit | None:
    layer, (value,) = model.module.get_submodule(str(call.target)), call.args
    assert isinstance(value, fx.Node)
    inputs = {node: name for name, node in model.module_graph.inputs.items()}
    others = any(user is not call and where.get(user) == op.name for user in value.users)
    known = value in inputs or (where.get(value, op.name) != op.name and value in model.values.crossing)
    if others or not known or model.readings[call].sample_shape is None:
        return None
    weight, bias = (dict(layer.named_parameters()).get(name) for name in ("weight", "bias"))
    assert weight is not None
    features = weight.shape[0 if isinstance(layer, nn.Linear) else 1]
    if features < 2:
        return None
    outputs = model.readings[call].bytes_per_sample
    branch = SplitBranch(
        source=where.get(value),
        model_input=inputs.get(value),
        start=0,
        stop=features,
        bytes_per_sample=model.readings[value].bytes_per_sample,
    )
    rows = outputs / weight.element_size() / features
    return OpSplit(
        op=op.name,
        by="outputs",
        kind=type(layer).__name__,  # pyright: ignore[reportArgumentType]
        layer=str(call.target),
        is_called=True,
        weight=model.parameter_names[id(weight)],
        weight_bytes=float(weight.numel() * weight.element_size()),
        bias=None if bias is None else model.parameter_names[id(bias)],
        bias_bytes=0.0 if bias is None else float(bias.numel() * bias.element_size()),
        flops_per_sample=2.0 * rows * weight.numel() if isinstance(layer, nn.Linear) else 0.0,
        output_bytes_per_sample=outputs,
        branches=(branch,),
    )
