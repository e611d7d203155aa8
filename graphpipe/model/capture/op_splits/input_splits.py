"""Finds the operators of a captured model that can be split by inputs: linear layers over concatenated branches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import fx, nn

from graphpipe.graph import Op, OpSplit, SplitBranch
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.op_splits.forwards import concatenates_last, only_linear
from graphpipe.model.capture.op_splits.layers import Layers, hooked, value_read
from graphpipe.model.capture.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    # A call of a submodule whose only input is a concatenation, and the linear layer that alone uses this input.
    concatenation: fx.Node
    node: fx.Node
    linear: str
    values: tuple[fx.Node, ...]
    """The concatenated values."""


def find_input_splits(model: MeasuredModel, groups: Groups, ops: Sequence[Op]) -> dict[str, OpSplit]:
    """Return how operators can be split by inputs, by the operator's name.

    An operator can be split if
    1. it concatenates several values along their last dimension, which are model inputs or come from as many different
       operators, and nothing else in it reads these values;
    2. a linear layer alone reads the concatenation: as a submodule that the forward calls, or as the only user of the
       input of such a submodule (a linear layer with its activation);
    3. nothing else uses the layer, its weight or its bias, and it does not have a hook;
    4. all parameters of the operator are trained, or none is;
    5. the operator does not need the whole mini-batch.

    Args:
        model: the captured model.
        groups: the nodes of every operator.
        ops: the operators, in the same order.
    """
    layers = Layers.of(model, groups, ops)
    found: dict[str, OpSplit] = {}
    for op, group in zip(ops, groups, strict=True):
        calls = [call for node in group if (call := _call(layers, node, group)) is not None]
        if len(calls) == 1 and layers.owns_parameters(layers.module(calls[0].linear)) and layers.may_be_split(op):
            split = _split(layers, op, calls[0])
            found |= {op.name: split} if split is not None else {}
    return found


def _call(layers: Layers, node: fx.Node, group: Sequence[fx.Node]) -> _Call | None:
    concatenation = value_read(node)
    if concatenation is None:
        return None
    values = _concatenated(layers, concatenation) if concatenation in group else None
    module = layers.module(node.target)
    if values is None or [*concatenation.users] != [node] or hooked(module):
        return None
    inside = "" if isinstance(module, nn.Linear) else only_linear(module)
    if inside is None:
        return None
    linear = f"{node.target}.{inside}".removesuffix(".")
    layer = layers.module(linear)
    if type(layer) is not nn.Linear or hooked(layer):
        return None
    return _Call(concatenation=concatenation, node=node, linear=linear, values=values)


def _concatenated(layers: Layers, node: fx.Node) -> tuple[fx.Node, ...] | None:
    # The values that a node concatenates along their last dimension; None if it does something else.
    if node.op == "call_module":
        module = layers.module(node.target)
        listed = list(node.args) if not node.kwargs and not hooked(module) and concatenates_last(module) else []
    else:
        listed = _glued(node, len(layers.model.readings[node].shape or ()))
    values = tuple(each for each in listed if isinstance(each, fx.Node))
    return values if len(values) == len(listed) and len(set(values)) == len(values) > 1 else None


def _glued(node: fx.Node, dimensions: int) -> list[Any]:
    # What torch.cat in a forward concatenates along the last dimension.
    tensors = node.args[0] if node.args else None
    dimension = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    is_cat = str(getattr(node.target, "overloadpacket", "")) == "aten.cat" and dimension in (-1, dimensions - 1)
    return [*tensors] if is_cat and isinstance(tensors, list | tuple) else []


def _split(layers: Layers, op: Op, call: _Call) -> OpSplit | None:
    layer = layers.module(call.linear)
    assert isinstance(layer, nn.Linear)
    readings = [layers.model.readings[value] for value in call.values]
    branches = _branches(layers, op, call)
    if branches is None or branches[-1].stop != layer.in_features or not _same_rows(readings):
        return None
    rows = readings[0].bytes_per_sample / readings[0].dtype.itemsize / (branches[0].stop - branches[0].start)
    return OpSplit(
        op=op.name,
        layer=call.linear,
        is_called=call.linear == call.node.target,
        **layers.parameters(layer),
        flops_per_sample=2.0 * rows * layer.in_features * layer.out_features,
        output_bytes_per_sample=rows * layer.out_features * layers.model.readings[call.node].dtype.itemsize,
        branches=branches,
    )


def _branches(layers: Layers, op: Op, call: _Call) -> tuple[SplitBranch, ...] | None:
    widths = [(layers.model.readings[value].shape or (0,))[-1] for value in call.values]
    ends = pairwise(accumulate(widths, initial=0))
    branches = tuple(layers.branch(value, *each) for value, each in zip(call.values, ends, strict=True))
    sources = [each.source for each in branches if each.source is not None]
    known = all(layers.comes_from_elsewhere(value, op) for value in call.values)
    elsewhere = any(layers.read_elsewhere(value, op, call.concatenation) for value in call.values)
    return branches if known and len(set(sources)) == len(sources) and not elsewhere else None


def _same_rows(readings: Sequence[Reading]) -> bool:
    # All values have the same dimensions but the last, of which the first is samples.
    shapes = {(reading.sample_shape or ())[:-1] for reading in readings}
    return len(shapes) == 1 and all(reading.sample_shape for reading in readings) and _floating(readings)


def _floating(readings: Sequence[Reading]) -> bool:
    return len({reading.dtype for reading in readings}) == 1 and readings[0].dtype.is_floating_point
