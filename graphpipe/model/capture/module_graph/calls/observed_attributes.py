"""Sees which attributes of modules are read and set, by classes of their own while it looks."""

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from graphpipe.model.kept_attributes import module_key

Told = Callable[[nn.Module, str], object]
"""Takes a module, and the name of an attribute."""


@contextmanager
def attributes_observed(
    names: Mapping[nn.Module, Collection[str]], read: Told, stored: Told = lambda module, name: None
) -> Generator[None]:
    """While inside, tell when attributes of modules are read and set.

    Args:
        names: of the attributes, by module. Modules hold their values themselves.
        read: called before each is read.
        stored: called before each is set.
    """
    kinds = {module: type(module) for module in names}
    known = {module_key(module): module for module in names}

    def of_modules(told: Told) -> Told:
        return lambda module, name: told(known.get(module_key(module), module), name)

    observed = {
        (kind, found): _observed(kind, found, of_modules(read), of_modules(stored))
        for kind, found in {(kind, frozenset(names[module])) for module, kind in kinds.items()}
    }
    for module, kind in kinds.items():
        module.__class__ = observed[kind, frozenset(names[module])]
    try:
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


def _observed(kind: type[nn.Module], names: Collection[str], read: Told, stored: Told) -> type[nn.Module]:
    def property_of(name: str) -> property:
        def get(module: nn.Module) -> Any:
            read(module, name)
            if name not in vars(module):
                raise AttributeError(name)  # torch looks among parameters, buffers and submodules then
            return vars(module)[name]

        def put(module: nn.Module, value: Any) -> None:
            stored(module, name)
            vars(module)[name] = value

        def remove(module: nn.Module) -> None:
            del vars(module)[name]

        return property(get, put, remove)

    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), about | {name: property_of(name) for name in names})
