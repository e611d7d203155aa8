"""How a graph writes: by functions that return what is written, and that can be differentiated."""

from collections.abc import Callable, Iterator, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from graphpipe.model.capture.module_graph.calls.opaque_calls import is_opaque_call
from graphpipe.model.capture.module_graph.failures import CannotExpress
from graphpipe.model.torch_private import (
    Operator,
    is_higher_order,
    is_mutable,
    is_view,
    switches_gradients,
    without_write,
)
from graphpipe.user_frames import user_place_in


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


def check_writes(program: ExportedProgram, owner_of: Callable[[fx.Node], str]) -> None:
    """Check that no value which needs a gradient is written into past autograd, and read afterwards.

        h = layer(x); h.detach().clamp_(min=0); return h      # h keeps the gradient of the layer

    As functions, the layer's output would be that of the write, which has no gradient.

    Args:
        program: exported, with its writes in place.
        owner_of: returns the path of the submodule that a node is of.

    Raises:
        CannotExpress: a forward does this.
    """
    graph = program.graph
    position = {node: number for number, node in enumerate(graph.nodes)}
    trained = _from_layers(graph)
    for node in graph.nodes:
        for value, write, kept in _written_past_autograd(node):
            if value in trained and (kept or any(position[user] > position[node] for user in value.users)):
                place = user_place_in(str(write.meta.get("stack_trace", "")))
                what = "writes into a value past its gradient" + (f" ({place})" if place else "")
                raise CannotExpress(owner_of(write), what)


def _from_layers(graph: fx.Graph) -> set[fx.Node]:
    """Return the values that depend on submodules or parameters, without the parameters themselves."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        parameter = node.op == "placeholder" and getattr(node.meta.get("val"), "requires_grad", False)
        if parameter or is_opaque_call(node.target) or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return {node for node in found if node.op != "placeholder"}


def _written_past_autograd(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """Yield the values that a node writes into without a gradient.

    Each comes with the node that writes, and with whether what it returns is the value itself.
    """
    if isinstance(node.target, Operator) and is_mutable(node.target):
        value, detached = _viewed(node.args[0])
        if detached and value is not None:
            yield value, node, False
    elif switches_gradients(node.target) and not node.args[0]:
        _, block, *given = node.args
        inside = getattr(node.graph.owning_module, str(getattr(block, "target", block))).graph
        names = [each for each in inside.nodes if each.op == "placeholder"]
        for write in inside.nodes:
            if isinstance(write.target, Operator) and is_mutable(write.target):
                value, detached = _viewed(write.args[0])
                if value in names:
                    outer, _ = _viewed(given[names.index(value)])
                    if outer is not None:
                        yield outer, write, not detached


def _viewed(value: Any) -> tuple[fx.Node | None, bool]:
    """Return the tensor that a value is a view of, and whether the view is detached from its gradient."""
    detached = False
    while isinstance(value, fx.Node) and isinstance(value.target, Operator) and is_view(value.target):
        detached = detached or value.target is torch.ops.aten.detach.default
        value = value.args[0]
    return (value, detached) if isinstance(value, fx.Node) else (None, detached)


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
