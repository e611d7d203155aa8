"""Functions that keep their results, in the files and classes of a model.

They are those of `functools`: `lru_cache`, `cache` and `cached_property`.
"""

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from operator import setitem
from types import CellType, FunctionType
from typing import Any

from torch import nn

_CACHED = type(functools.lru_cache(len))
_NOT_OF_MODELS = frozenset({"torch", *sys.stdlib_module_names})
_Replacement = tuple[Callable[[Any], None], Any, Any]
"""Puts a function in its place, the function with a cache, and the one without."""


@contextmanager
def without_caches(module: nn.Module) -> Generator[None]:
    """While inside, these functions compute their results each time, and keep none.

    The block runs a copy of a model on tensors without data. The model itself would find such tensors in the caches,
    and a run that finds something in them runs other operators than one that does not.

    Args:
        module: the model, or its copy.
    """
    replacements = list(_replacements(module))
    for put, _, bare in replacements:
        put(bare)
    try:
        yield
    finally:
        for put, cached, _ in replacements:
            put(cached)


def _replacements(module: nn.Module) -> Iterator[_Replacement]:
    classes = {kind for part in module.modules() for kind in type(part).__mro__}
    classes = {kind for kind in classes if kind.__module__.partition(".")[0] not in _NOT_OF_MODELS}
    files = sorted({kind.__module__ for kind in classes} & sys.modules.keys())
    seen: set[int] = set()
    for file in files:
        variables = vars(sys.modules[file])
        classes |= {value for value in variables.values() if isinstance(value, type) and value.__module__ == file}
        for name, value in variables.items():
            yield from _in_place(partial(setitem, variables, name), value, seen)
    for kind in classes:
        for name, value in vars(kind).items():
            yield from _in_place(partial(setattr, kind, name), value, seen)


def _in_place(put: Callable[[Any], None], value: Any, seen: set[int]) -> Iterator[_Replacement]:
    if isinstance(value, functools.cached_property):
        yield put, value, property(value.func)
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if isinstance(function, _CACHED):
        bare: Any = function.__wrapped__
        yield put, value, bare if function is value else type(value)(bare)
    # A function with a cache that another function is wrapped around, as transformers does.
    for cell in (function.__closure__ or ()) if isinstance(function, FunctionType) else ():
        if id(cell) not in seen and isinstance(cached := content(cell), _CACHED):
            seen.add(id(cell))
            yield partial(setattr, cell, "cell_contents"), cached, cached.__wrapped__


def content(cell: CellType) -> object:
    """Return what a cell of a closure holds; None if the variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
