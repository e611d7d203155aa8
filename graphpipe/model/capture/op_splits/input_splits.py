"""Finds the operators of a captured model that can be split by inputs: linear layers over concatenated branches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx, nn

from graphpipe.graph import Op, OpSplit, SplitBranch
from graphpipe.model.capture.build_ops import MeasuredModel
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.op_splits.forwards import concatenates_last, only_linear
from graphpipe.model.capture.reading import Reading

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
    where = {node: op.name for op, group in zip(ops, groups, strict=True) for node in group}
    users = users_of_parameters(model)
    found: dict[str, OpSplit] = {}
    for op, group in zip(ops, groups, strict=True):
        calls = [call for node in group if (call := _call(model, node, group)) is not None]
        if len(calls) == 1 and not op.whole_batch and _owns(model, calls[0], users) and trained_alike(model, op):
            split = _split(model, op, calls[0], where)
            found |= {op.name: split} if split is not None else {}
    return found


def hooked(module: nn.Module) -> bool:
    """True if a module has hooks on its forward or backward, or a parametrised weight."""
    return any(getattr(module, hooks) for hooks in _HOOKS) or hasattr(module, "parametrizations")


def _call(model: MeasuredModel, node: fx.Node, group: Sequence[fx.Node]) -> _Call | None:
    if node.op != "call_module" or node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return None
    concatenation = node.args[0]
    values = _concatenated(model, concatenation) if concatenation in group else None
    module = model.module.get_submodule(str(node.target))
    if values is None or [*concatenation.users] != [node] or hooked(module):
        return None
    inside = "" if isinstance(module, nn.Linear) else only_linear(module)
    if inside is None:
        return None
    linear = f"{node.target}.{inside}".removesuffix(".")
    layer = model.module.get_submodule(linear)
    if type(layer) is not nn.Linear or hooked(layer):
        return None
    return _Call(concatenation=concatenation, node=node, linear=linear, values=values)


def _concatenated(model: MeasuredModel, node: fx.Node) -> tuple[fx.Node, ...] | None:
    # The values that a node concatenates along their last dimension; None if it does something else.
    if node.op == "call_module":
        module = model.module.get_submodule(str(node.target))
        listed = list(node.args) if not node.kwargs and not hooked(module) and concatenates_last(module) else []
    else:
        listed = _glued(node, len(model.readings[node].shape or ()))
    values = tuple(each for each in listed if isinstance(each, fx.Node))
    return values if len(values) == len(listed) and len(set(values)) == len(values) > 1 else None


def _glued(node: fx.Node, dimensions: int) -> list[Any]:
    # What torch.cat in a forward concatenates along the last dimension.
    tensors = node.args[0] if node.args else None
    dimension = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    is_cat = str(getattr(node.target, "overloadpacket", "")) == "aten.cat" and dimension in (-1, dimensions - 1)
    return [*tensors] if is_cat and isinstance(tensors, list | tuple) else []


def users_of_parameters(model: MeasuredModel) -> dict[int, int]:
    """Return how many nodes, or submodules inside a node, hold each parameter; by identity."""
    found: dict[int, int] = {}
    for node in model.module_graph.graph.nodes:
        modules = model.module.get_submodule(str(node.target)).modules() if node.op == "call_module" else []
        held = [each for module in modules for each in module.parameters(recurse=False)]
        for each in held if node.op == "call_module" else model.parameters(node):
            found[id(each)] = found.get(id(each), 0) + 1
    return found


def _owns(model: MeasuredModel, call: _Call, users: Mapping[int, int]) -> bool:
    layer = model.module.get_submodule(call.linear)
    return all(users[id(each)] == 1 for each in layer.parameters())


def trained_alike(model: MeasuredModel, op: Op) -> bool:
    """True if all parameters of an operator are trained, or none is."""
    parameters = dict(model.module.named_parameters())
    return len({parameters[name].requires_grad for name in op.parameters}) == 1


def _split(model: MeasuredModel, op: Op, call: _Call, where: Mapping[fx.Node, str]) -> OpSplit | None:
    layer = model.module.get_submodule(call.linear)
    assert isinstance(layer, nn.Linear)
    readings = [model.readings[value] for value in call.values]
    branches = _branches(model, op, call, where)
    if branches is None or branches[-1].stop != layer.in_features or not _same_rows(readings):
        return None
    rows = readings[0].bytes_per_sample / readings[0].dtype.itemsize / (branches[0].stop - branches[0].start)
    bias = dict(layer.named_parameters()).get("bias")  # None if the layer does not have one
    return OpSplit(
        op=op.name,
        layer=call.linear,
        is_called=call.linear == call.node.target,
        weight=model.parameter_names[id(layer.weight)],
        weight_bytes=float(layer.weight.numel() * layer.weight.element_size()),
        bias=None if bias is None else model.parameter_names[id(bias)],
        bias_bytes=0.0 if bias is None else float(bias.numel() * bias.element_size()),
        flops_per_sample=2.0 * rows * layer.in_features * layer.out_features,
        output_bytes_per_sample=rows * layer.out_features * layer.weight.element_size(),
        branches=branches,
    )


def _branches(
    model: MeasuredModel, op: Op, call: _Call, where: Mapping[fx.Node, str]
) -> tuple[SplitBranch, ...] | None:
    inputs = {node: name for name, node in model.module_graph.inputs.items()}
    widths = [(model.readings[value].shape or (0,))[-1] for value in call.values]
    stops = [sum(widths[: number + 1]) for number in range(len(widths))]
    branches = tuple(
        SplitBranch(
            source=where.get(value),
            model_input=inputs.get(value),
            start=start,
            stop=stop,
            bytes_per_sample=model.readings[value].bytes_per_sample,
        )
        for value, (start, stop) in zip(call.values, pairwise([0, *stops]), strict=True)
    )
    known = all(
        each.model_input is not None or (each.source not in (None, op.name) and value in model.values.crossing)
        for each, value in zip(branches, call.values, strict=True)
    )
    sources = [each.source for each in branches if each.source is not None]
    elsewhere = any(
        user is not call.concatenation and where.get(user) == op.name for value in call.values for user in value.users
    )
    return branches if known and len(set(sources)) == len(sources) and not elsewhere else None


def _same_rows(readings: Sequence[Reading]) -> bool:
    # All values have the same dimensions but the last, of which the first is samples.
    shapes = {(reading.sample_shape or ())[:-1] for reading in readings}
    return len(shapes) == 1 and all(reading.sample_shape for reading in readings) and _floating(readings)


def _floating(readings: Sequence[Reading]) -> bool:
    return len({reading.dtype for reading in readings}) == 1 and readings[0].dtype.is_floating_point
