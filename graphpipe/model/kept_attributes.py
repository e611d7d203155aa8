"""Keeps what a module holds beside its parameters, while its forward runs for another reason than training."""

import copy
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.model.torch_private import HOOK_TABLES, own_buffers, scripted_values

CONTAINERS = (list, dict, set, deque)
"""Kinds of values that a forward can change in place."""
_EMPTY = nn.Module()


def module_key(module: nn.Module) -> int:
    """Return a number that is equal for a module and for its stand-ins.

    While torch.export traces a model that has a submodule under two names, each forward runs on a stand-in, whose
    attributes are those of the module.
    """
    return id(vars(module))


@contextmanager
def attributes_kept(module: nn.Module) -> Generator[None]:
    """Undo what the block does to plain attributes of a module, to containers in them, or to which buffers it has.

    A layer keeps angles for the next call, for example. The next call would find them, and run other operators.
    """
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    held = [(vars(part), plain_attributes(part)) for part in parts]
    contents = [(value, value.copy()) for _, found in held for value in found.values() if type(value) in CONTAINERS]
    buffers = [(found := own_buffers(part), dict(found)) for part in parts]
    try:
        yield
    finally:
        for found, before in buffers:
            found.clear()
            found.update(before)
        for found, before in held:
            for name in found.keys() - before.keys() - vars(_EMPTY).keys():
                del found[name]
            found.update(before)
        for value, before in contents:
            _refill(value, before)


def _refill(container: Any, before: Any) -> None:
    container.clear()
    (container.update if isinstance(container, (dict, set)) else container.extend)(before)


@contextmanager
def hooks_kept(module: nn.Module) -> Generator[None]:
    """Remove the hooks that the block adds: some libraries add theirs in the first forward."""
    held = [(table, dict(table)) for part in module.modules() for table in HOOK_TABLES(part)]
    try:
        yield
    finally:
        for table, before in held:
            table.clear()
            table.update(before)


@contextmanager
def scripted_kept(module: nn.Module) -> Generator[None]:
    """Let the block change copies of the buffers and attributes that the scripted modules in a module have."""
    parts = [part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    held = [(part, scripted_values(part)) for part in parts]
    try:
        for part, values in held:
            for name, value in values.items():
                setattr(part, name, value.clone() if isinstance(value, Tensor) else copy.deepcopy(value))
        yield
    finally:
        for part, values in held:
            for name, value in values.items():
                setattr(part, name, value)


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module itself that not every module has."""
    return {name: value for name, value in vars(module).items() if name not in vars(_EMPTY)}
