"""Functions that keep their results, beside the classes of a model (`functools.lru_cache`)."""

import functools
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

from torch import nn

_CACHED = type(functools.lru_cache(len))


@contextmanager
def without_caches(module: nn.Module) -> Generator[None]:
    """While inside, these functions compute their results each time, and keep none.

    The block runs a copy of a model on tensors without data. The model itself would find such tensors in the caches,
    and a run that finds something in them runs other operators than one that does not.

    Args:
        module: the model, or its copy.
    """
    names, cells = [*_names(module)], [*_cells(module)]
    for variables, name, cached in names:
        variables[name] = cached.__wrapped__
    for cell, cached in cells:
        cell.cell_contents = cached.__wrapped__
    try:
        yield
    finally:
        for variables, name, cached in names:
            variables[name] = cached
        for cell, cached in cells:
            cell.cell_contents = cached


def _names(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    # The functions with a cache, as the files of the model's classes name them.
    for variables in _files(module):
        yield from ((variables, name, value) for name, value in variables.items() if isinstance(value, _CACHED))


def _cells(module: nn.Module) -> Iterator[tuple[CellType, Any]]:
    # Those that another function is wrapped around, as transformers does.
    seen: set[int] = set()
    for variables in _files(module):
        for value in variables.values():
            for cell in (value.__closure__ or ()) if isinstance(value, FunctionType) else ():
                if id(cell) not in seen and isinstance(_content(cell), _CACHED):
                    seen.add(id(cell))
                    yield cell, _content(cell)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _files(module: nn.Module) -> list[dict[str, Any]]:
    names = sorted({type(part).__module__ for part in module.modules()})
    return [vars(sys.modules[name]) for name in names if name in sys.modules and not name.startswith("torch.")]
