"""The code that fills the tensors of a submodule, in the order in which it is tried."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

InitFunction = Callable[[nn.Module], object]
"""Fills the tensors that a submodule holds itself, in place."""
RESETS = ("reset_parameters", "_reset_parameters")
"""The names of torch's methods that fill a module anew."""
_BY_PARENT = "_init_weights"


def paths_inner_first(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every submodule once, by its first path, after the submodules inside it."""
    first = {id(part): path for path, part in model.named_modules()}

    def walk(path: str, part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        for name, child in part.named_children():
            inner = f"{path}.{name}" if path else name
            if first[id(child)] == inner:
                yield from walk(inner, child)
        yield path, part

    return walk("", model)


def code_of(model: nn.Module, path: str, function: InitFunction | None) -> Iterator[InitFunction]:
    """Yield the functions that may fill a submodule's tensors. Later ones are for what earlier ones leave.

    Args:
        model: the user's.
        path: of the submodule.
        function: of the user; it is the only one then.
    """
    if function is not None:
        yield function
        return
    around = [*_around(model, path)]
    by_parent = next((found for found in map(_fills_submodules, reversed(around)) if found), None)
    if by_parent is not None:
        yield by_parent
    for name in RESETS:
        if callable(getattr(around[-1], name, None)):
            yield lambda part, name=name: getattr(part, name)()
            return


def has_reset(part: nn.Module) -> bool:
    """Whether a module has torch's method that fills it anew, which may fill its submodules too."""
    return any(callable(getattr(part, name, None)) for name in RESETS)


def _around(model: nn.Module, path: str) -> Iterator[nn.Module]:
    # The model, then each module on the way to the submodule, which is the last.
    part = model
    yield part
    for name in path.split(".") if path else ():
        part = part.get_submodule(name)
        yield part


def _fills_submodules(part: nn.Module) -> InitFunction | None:
    found: Any = getattr(part, _BY_PARENT, None)
    if not callable(found):
        return None
    try:
        inspect.signature(found).bind(part)
    except (TypeError, ValueError):
        return None
    return found
