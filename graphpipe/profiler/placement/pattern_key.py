"""What a pattern computes, without its name: equal layers of a model have one key."""

import platform
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, fx, nn


def pattern_key(backend: str, module: fx.GraphModule, arguments: Sequence[Tensor]) -> str:
    """Return a digest of a backend, a region, and the shapes and types of its arguments on this machine.

    The nodes count by their kind, function and attributes, submodules by their class, attributes and parameters.
    """
    number = {node: position for position, node in enumerate(module.graph.nodes)}

    def index(node: fx.Node) -> Any:
        return f"%{number[node]}"

    lines = [
        f"{node.op} {_target(module, node)} {fx.map_arg(node.args, index)} {fx.map_arg(node.kwargs, index)}"
        for node in number
    ]
    lines += [_form(each) for each in arguments]
    lines += [backend, torch.__version__, platform.processor(), platform.machine(), str(torch.get_num_threads())]
    return sha256("\n".join(lines).encode()).hexdigest()


def _target(module: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return _describe(module.get_submodule(str(node.target)))
    if node.op == "get_attr":
        found = getattr(module, str(node.target))
        return _form(found) if isinstance(found, Tensor) else repr(found)
    if node.op == "call_function":
        return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__qualname__', node.target)}"
    return str(node.target) if node.op == "call_method" else ""


def _describe(module: nn.Module) -> str:
    kinds = [f"{type(each).__module__}.{type(each).__qualname__}" for each in module.modules()]
    tensors = [_form(each) for each in (*module.parameters(), *module.buffers())]
    return " ".join([repr(module), *kinds, *tensors])


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}{[*tensor.shape]}{[*tensor.stride()]}"
