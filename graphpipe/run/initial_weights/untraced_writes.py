"""Code of constructors that writes parameters and leaves no trace of it on the meta device.

Torch's `trunc_normal_`, `orthogonal_`, `dirac_` and `sparse_` do nothing there, and writes into `parameter.data` are
not counted. So the code is searched for these names: that of the constructors of the user's classes, and of the
functions that they name.
"""

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from torch import nn

from graphpipe.run.initial_weights.init_code import BY_PARENT, RESETS

_UNTRACED = frozenset({"trunc_normal_", "orthogonal_", "dirac_", "sparse_", "data"})
_RUN_AGAIN = frozenset({*RESETS, BY_PARENT, "forward"})
"""Methods that are called to fill a module, so what they write is no loss, and the one that writes nothing."""


def untraced_write(kind: type[nn.Module]) -> str:
    """Return the name with which the constructor of a class may write parameters unseen; empty if there is none."""
    seen: set[int] = set()
    made = (vars(each).get("__init__") for each in kind.__mro__)
    found = (name for each in made if isinstance(each, FunctionType) for name in _names(each, kind, seen))
    return next((name for name in found if name in _UNTRACED), "")


def _names(function: FunctionType, kind: type[nn.Module], seen: set[int]) -> Iterator[str]:
    # The names that a function reads, and those that the functions of the user which it names read.
    if id(function) in seen or function.__module__.partition(".")[0] == "torch":
        return
    seen.add(id(function))
    names = [*_names_in(function.__code__)]
    yield from names
    known = [function.__globals__.get(name) for name in names]
    holders = [kind, *(each for each in known if isinstance(each, ModuleType))]
    known += [getattr(holder, name, None) for holder in holders for name in names if name not in _RUN_AGAIN]
    for each in known:
        if isinstance(each, FunctionType):
            yield from _names(each, kind, seen)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
