"""Hooks by which `transformers` notes what submodules return for the forward around them, such as hidden states."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import nn

from graphpipe.model.torch_private import forward_hooks

_MODULE = "transformers.utils.output_capturing"


def is_recorder(hook: object) -> bool:
    """True for a hook that only notes values."""
    return getattr(hook, "__module__", "") == _MODULE


def recorders(module: nn.Module) -> list[Callable[[nn.Module, Any, Any], None]]:
    """Return the hooks of a module that only note values. They take the module, its arguments and its result."""
    return [hook for hook in forward_hooks(module).values() if is_recorder(hook)]


@contextmanager
def without_recorders(root: nn.Module) -> Generator[None]:
    """While inside, a module and its submodules do not have these hooks."""
    held = [(forward_hooks(module), dict(forward_hooks(module))) for module in root.modules()]
    remove_recorders(root)
    try:
        yield
    finally:
        for hooks, before in held:
            hooks.clear()
            hooks.update(before)


def remove_recorders(root: nn.Module) -> None:
    """Remove these hooks from a module and its submodules."""
    for module in root.modules():
        hooks = forward_hooks(module)
        for key in [key for key, hook in hooks.items() if is_recorder(hook)]:
            del hooks[key]
