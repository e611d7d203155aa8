"""The half of a split backward that is running.

A compiled region is one operation of autograd's graph, whose code asks here which of its gradients are wanted.
"""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from torch.autograd.graph import GradientEdge, Node


@dataclass(frozen=True, slots=True)
class Half:
    """A half of a split backward."""

    kind: Literal["input", "weight"]
    """Whether gradients of received values are wanted, or those that lead only to parameters."""
    parameter_edges: frozenset[GradientEdge]
    """The edges where gradients leave for parameters. The input half needs none of them."""
    leaving: frozenset[Node] = frozenset()
    """In the input half: the operations that run again in the weight half."""
    spare: Callable[[Node, Collection[int]], object] = field(default=lambda node, keys: None)
    """Takes an operation that has read what it saved, and the memory keys of what it will read in its weight half."""


KEPT = "graphpipe_kept"
"""The attribute of an operation of a compiled region that has what its input half keeps for its weight half. It is
freed with it."""
_running: list[Half] = []  # Autograd runs the backward of an accelerator in a thread of its own.


def running_half() -> Half | None:
    """Return the half that is running in this process; None outside a split backward."""
    return _running[-1] if _running else None


@contextmanager
def running(half: Half) -> Generator[None]:
    """Note that a half runs in the block."""
    _running.append(half)
    try:
        yield
    finally:
        _running.pop()
