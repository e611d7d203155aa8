"""How a graph writes: by functions that return what is written, and that can be differentiated."""

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from graphpipe.model.capture.module_graph.calls.opaque_calls import is_opaque_call
from graphpipe.model.torch_private import Operator, is_higher_order, is_mutable, is_view, without_write


def replace_plain_writes(module: fx.GraphModule) -> None:
    """Replace in-place operators of an exported graph by functions. Those that write into views or inputs stay.

    PyTorch's decompositions do this for every program, and trace it again for that. T5's buckets of positions, which
    add in place, took as long as the rest of its export.

    Args:
        module: its nodes have their tensors without data in `meta["val"]`.
    """
    position = {node: number for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        if isinstance(node.target, Operator) and is_mutable(node.target):
            function, tensor = without_write(node.target), node.args[0]
            if function is not None and _is_unshared(tensor) and _returns_the_same(function, node):
                node.target = function
                later = {user for user in tensor.users if position[user] > position[node]}
                tensor.replace_all_uses_with(node, delete_user_cb=later.__contains__)
    module.recompile()


def _is_unshared(tensor: object) -> bool:
    # Whether an operator or a call made it, and nothing else shares its memory.
    if not isinstance(tensor, fx.Node) or tensor.op != "call_function":
        return False
    # An operator that writes returns what it wrote into, for example a buffer.
    made = isinstance(tensor.target, Operator) and not is_view(tensor.target) and not is_mutable(tensor.target)
    if not made and not (tensor.target is getitem and is_opaque_call(tensor.all_input_nodes[0].target)):
        return False
    calls = [user.target for user in tensor.users if user.op != "output"]
    return not any(is_higher_order(each) or (isinstance(each, Operator) and is_view(each)) for each in calls)


def _returns_the_same(function: Operator, node: fx.Node) -> bool:
    # A function may return another dtype or shape than that of the tensor into which the operator writes.
    given: Any = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    found, wanted = function(*given[0], **given[1]), node.meta["val"]
    return isinstance(found, Tensor) and found.dtype == wanted.dtype and found.shape == wanted.shape


def differentiable(node: fx.Node) -> Any:
    """Return the operator of a node, or in its place a function that has a derivative."""
    value, own = node.meta.get("val"), node.target
    if own in _OF_COMPLEX:
        return _OF_COMPLEX[own] if isinstance(value, Tensor) and value.is_complex() else own
    return copied if own is torch.ops.aten.copy.default else own


def copied(tensor: Tensor, values: Tensor) -> Tensor:
    """Return the content of `tensor` after `tensor.copy_(values)`; torch's own functional copy has no derivative."""
    return values.to(tensor).expand_as(tensor)


def written(buffer: Tensor, values: Tensor, enabled: bool = True) -> Tensor:
    """Write into a buffer of the model's own, if enabled, and return it."""
    if enabled:
        with torch.no_grad():
            buffer.copy_(values)
    return buffer


def with_slice(tensor: Tensor, values: Tensor, *where: Any, **named: Any) -> Tensor:
    """Return a copy of a tensor with other values in a slice, as a Fourier layer puts the modes it keeps into zeros."""
    found = tensor.clone()
    torch.ops.aten.slice.Tensor(found, *where, **named).copy_(values)
    return found


def with_row(tensor: Tensor, values: Tensor, *where: Any) -> Tensor:
    """Return a copy of a tensor with other values at an index of a dimension."""
    found = tensor.clone()
    found.select(*where).copy_(values)
    return found


_OF_COMPLEX: Mapping[Any, Callable[..., Tensor]] = {
    torch.ops.aten.slice_scatter.default: with_slice,
    torch.ops.aten.select_scatter.default: with_row,
}
"""In place of functions that torch (2.13) cannot differentiate for complex tensors."""
