"""Hooks by which `transformers` notes what submodules return for the forward around them, such as hidden states."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import nn

from graphpipe.model.torch_private import HOOK_TABLES

_MODULE = "transformers.utils.output_capturing"


def is_recorder(hook: object) -> bool:
    """True for a hook that only notes values."""
    return getattr(hook, "__module__", "") == _MODULE


def recorders(module: nn.Module) -> list[Callable[[nn.Module, Any, Any], None]]:
    """Return the hooks of a module that only note values. They take the module, its arguments and its result."""
    return [hook for hook in HOOK_TABLES(module)[0].values() if is_recorder(hook)]


@contextmanager
def apart(module: nn.Module) -> Generator[None]:
    """While inside, forwards around a call of a module note nothing of it. Forwards inside it note as always."""
    noting: Any = getattr(sys.modules.get(_MODULE), "_active_collector", None)
    (hooks, *_), held = HOOK_TABLES(module), dict(HOOK_TABLES(module)[0])
    _remove(module)
    before = dict(vars(noting)) if noting is not None else {}  # while torch traces, the place of the notes
    token = noting.set(None) if noting is not None else None
    try:
        yield
    finally:
        if noting is not None:
            noting.reset(token)
            vars(noting).update(before)
        hooks.update(held)


def _remove(module: nn.Module) -> None:
    hooks, *_ = HOOK_TABLES(module)
    for key in [key for key, hook in hooks.items() if is_recorder(hook)]:
        del hooks[key]
