"""In-place operators that write into a tensor without views: each becomes the function that returns what it writes.

PyTorch's decompositions do this for every program, and trace it again for that. T5's buckets of positions, which add in
place, took as long as the rest of its export.
"""

from operator import getitem
from typing import Any

from torch import Tensor, fx

from graphpipe.model.capture.module_graph.calls.opaque_calls import is_opaque_call
from graphpipe.model.torch_private import Operator, is_higher_order, is_mutable, is_view, without_write


def replace_plain_writes(module: fx.GraphModule) -> None:
    """Replace in-place operators of an exported graph. Those that write into views or inputs stay.

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
