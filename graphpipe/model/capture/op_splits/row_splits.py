"""Finds the operators of a captured model that can be split by rows: embeddings."""

from collections.abc import Sequence

from torch import fx

from graphpipe.graph import Op, OpSplit
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.module_graph.module_graph import draws
from graphpipe.model.capture.op_splits.layers import Layers, hooked, is_table, value_read
from graphpipe.model.torch_private import Operator


def find_row_splits(model: MeasuredModel, groups: Groups, ops: Sequence[Op]) -> dict[str, OpSplit]:
    """Return how operators can be split by rows, by the operator's name.

    An operator can be split if
    1. it calls an `nn.Embedding` or `nn.EmbeddingBag` itself, with one list of indices;
    2. the list comes, through glue such as the addition of an offset, from only one value: an input of the model, or
       one that another operator computes and that nothing else in this operator reads;
    3. the layer has neither a largest norm, sparse gradients nor gradients scaled by frequency, and a bag does not take
       the largest row;
    4. nothing else uses the layer or its weights, it does not have a hook, all parameters of the operator are trained
       or none is, and it does not need the whole mini-batch.

    What the operator computes after the look-up stays in it, behind the sum.

    Args:
        model: the captured model.
        groups: the nodes of every operator.
        ops: the operators, in the same order.
    """
    layers = Layers.of(model, groups, ops)
    found: dict[str, OpSplit] = {}
    for op, group in zip(ops, groups, strict=True):
        calls = [node for node in group if _can_be_split(layers, node)]
        if calls and layers.may_be_split(op):
            split = _split(layers, op, max(calls, key=model.parameter_elements), group)
            found |= {op.name: split} if split is not None else {}
    return found


def glue_before(call: fx.Node, group: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes of an operator that compute what a call reads, in order."""
    inside, found = {*group}, {call}
    stack = [call]
    while stack:
        new = {each for each in stack.pop().all_input_nodes if each in inside} - found
        found |= new
        stack += new
    return tuple(node for node in group if node in found and node is not call)


def _can_be_split(layers: Layers, node: fx.Node) -> bool:
    if value_read(node) is None:
        return False
    layer = layers.module(node.target)
    if not is_table(layer) or hooked(layer) or not layers.owns_parameters(layer):
        return False
    return not layer.scale_grad_by_freq


def _split(layers: Layers, op: Op, call: fx.Node, group: Sequence[fx.Node]) -> OpSplit | None:
    layer, value, result = layers.module(call.target), value_read(call), layers.model.readings[call]
    glue = glue_before(call, group)
    read = layers.only_read([*glue, call])
    rows = layer.get_parameter("weight").shape[0]
    if value is None or read is None or rows < 2 or result.sample_shape is None or not all(map(_repeatable, glue)):
        return None
    if layers.op_of.get(read) is not None and _read_besides(layers, read, [*glue, call], group):
        return None
    return OpSplit(
        op=op.name,
        by="rows",
        kind=type(layer).__name__,  # pyright: ignore[reportArgumentType]
        layer=str(call.target),
        is_called=True,
        **layers.parameters(layer),
        flops_per_sample=0.0,
        output_bytes_per_sample=result.bytes_per_sample,
        branches=(layers.branch_through(read, value, rows),),
    )


def _repeatable(node: fx.Node) -> bool:
    # Every part computes the indices again.
    written = node.meta.keys() & {"written_by", "writes"}
    return isinstance(node.target, Operator) and not draws(node.target) and not written


def _read_besides(layers: Layers, value: fx.Node, path: Sequence[fx.Node], group: Sequence[fx.Node]) -> bool:
    # What the rest of the operator reads of the value or of the glue would have to be sent to it too.
    others = [node for node in group if node not in path]
    readers = [node for node in others if value in layers.model.values.read_by(node)]
    leaks = [user for node in path[:-1] for user in node.users if user not in path]
    return bool(readers or leaks)
