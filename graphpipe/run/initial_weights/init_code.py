"""The code that fills the tensors of a submodule, in the order in which it is tried."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

InitFunction = Callable[[nn.Module], object]
"""Fills the tensors that a submodule holds itself, in place."""
RESETS = ("reset_parameters", "_reset_parameters")
"""The names of torch's methods that fill a module anew."""
BY_PARENT = "_init_weights"
"""The name of the method of models of Hugging Face that fills a module inside them."""


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
    yield from filter(None, (init_by_parent(model, path), own_reset(model.get_submodule(path))))


def init_by_parent(model: nn.Module, path: str) -> InitFunction | None:
    """Return `_init_weights` of the innermost module around a submodule that has it; None if there is none."""
    return next(filter(None, map(_fills_submodules, reversed([*_around(model, path)]))), None)


def own_reset(part: nn.Module) -> InitFunction | None:
    """Return the call of torch's method that fills a module anew, and perhaps its submodules; None if it has none."""
    name = next((name for name in RESETS if callable(getattr(part, name, None))), None)
    return None if name is None else lambda part: getattr(part, name)()


def _around(model: nn.Module, path: str) -> Iterator[nn.Module]:
    # The model, then each module on the way to the submodule, which is the last.
    part = model
    yield part
    for name in path.split(".") if path else ():
        part = part.get_submodule(name)
        yield part


def _fills_submodules(part: nn.Module) -> InitFunction | None:
    found: Any = getattr(part, BY_PARENT, None)
    if not callable(found):
        return None
    try:
        inspect.signature(found).bind(part)
    except (TypeError, ValueError):
        return None
    return found
