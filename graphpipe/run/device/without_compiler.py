"""Keeps the compiler of torch from being imported by those who use nothing of it."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"


class _Placeholder(ModuleType):
    """Answers what eager optimizers ask of the compiler; imports the compiler when anything else is asked."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.functions: list[Any] = []

    def graph_break(self) -> None:
        """Do nothing: outside of the compiler there is no graph to break."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """Return the function itself, and remember it: torch keeps the answer on the function."""
        self.functions.append(function)
        return function

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks all modules for it, also while torch imports what the compiler needs.
            raise AttributeError(name)
        self.remove()
        return getattr(import_module(_COMPILER), name)

    def remove(self) -> None:
        """Leave no trace, so that the next import finds the compiler."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        for function in self.functions:
            vars(function).pop("__dynamo_disable", None)


@contextmanager
def without_compiler() -> Generator[None]:
    """Keep `torch._dynamo` from being imported in the block by those who use nothing of it.

    torch.optim imports it when an optimizer is built and in every step, only to tell the compiler to stay away. The
    import takes two seconds of processor time, which every rank would spend before its first step. Code that really
    uses the compiler gets it, in the block as well.
    """
    if _COMPILER in sys.modules:
        yield
        return
    placeholder = _Placeholder()
    sys.modules[_COMPILER] = placeholder
    try:
        yield
    finally:
        placeholder.remove()
