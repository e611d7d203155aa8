"""A module like another one, with some of its submodules, parameters or numbers replaced."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def rebuilt(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """Return a module with the same class, attributes, parameters, buffers and children, but for some children.

    What it refers to is the same. What is set on it afterwards does not change `module`. Forwards and hooks that are
    bound to `module` are bound to the new one.

    Args:
        module: of the user.
        children: the new ones, by name.
    """
    memo: dict[int, Any] = {}
    for value in vars(module).values():
        if not isinstance(value, dict) and not callable(value):
            memo[id(value)] = value
    for held in (module.parameters(), module.buffers()):
        memo |= {id(each): each for each in held}
    for name, child in module.named_children():
        memo[id(child)] = children.get(name, child)
    return copy.deepcopy(module, memo)


def without_parameters(module: nn.Module, children: Mapping[str, nn.Module] | None = None) -> nn.Module:
    """Return the module without its own parameters. They are set as attributes while it is called.

    Args:
        module: of the user.
        children: other children, by name.
    """
    made = rebuilt(module, children or {})
    for name, _ in list(made.named_parameters(recurse=False)):
        delattr(made, name)
    return made


def called_with(module: nn.Module, tensors: Mapping[str, Tensor | None], *args: Any, **kwargs: Any) -> Any:
    """Call a module that has these attributes, its own or those of submodules, only during the call."""
    held = [(module.get_submodule(path), own, each) for name, each in tensors.items() for path, own in [_split(name)]]
    for part, own, tensor in held:
        setattr(part, own, tensor)
    try:
        return module(*args, **kwargs)
    finally:
        for part, own, _ in held:
            delattr(part, own)


def _split(name: str) -> tuple[str, str]:
    path, _, own = name.rpartition(".")
    return path, own
