"""The record that a backend declares: its name, what it can run, and how it compiles a region."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx

from graphpipe.graph import Op

Region = Callable[..., Any]
"""Takes the arguments of a region's module, and returns what the module returns."""


def _available() -> str:
    return ""


def _every_operator(op: Op) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A way to run regions of operators. `graphpipe.model.backends.registry` lists all of them by name."""

    name: str
    """The name of the backend, as `graphpipe place --backends` and plans have it."""
    kind: Literal["operators", "graph"]
    """What the backend is good at. `operators`: it is measured on patterns of a few operators, and the dynamic
    programme chooses. `graph`: it works best on large regions, and the evolutionary search chooses what it gets."""
    compile: Callable[[fx.GraphModule, Sequence[Tensor]], Region]
    """Compiles a region, a module in evaluation mode, for example arguments. The number of samples stays theirs. Raises
    any exception if it cannot run the region."""
    runs: Callable[[Op], bool] = _every_operator
    """Returns whether the backend can run an operator. What it refuses in `compile` only costs the attempt."""
    missing: Callable[[], str] = _available
    """Returns why the backend cannot be used here, as a sentence; empty if it can."""
    relative_tolerance: float = 0.0
    """Largest difference of an output from eager's, as a share of its largest absolute value. 0: the same bits."""
    backward: bool = False
    """Whether stages that train may use the backend."""
