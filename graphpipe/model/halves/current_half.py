"""The half of a split backward that is running.

A compiled region is one operation of autograd's graph, whose code asks here which of its gradients are wanted.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch.autograd.graph import GradientEdge, Node


@dataclass(frozen=True, slots=True)
class Half:
    """A half of a split backward."""

    kind: Literal["input", "weight"]
    """Whether gradients of received values are wanted, or those that lead only to parameters."""
    parameter_edges: frozenset[GradientEdge]
    """The edges where gradients leave for parameters. The input half needs none of them."""


_LATER_READS = "graphpipe_later_reads"
"""The attribute of an operation that has the memory keys of what its weight half reads."""

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


def note_later_reads(node: Node, keys: Collection[int]) -> None:
    """Note which of the tensors that an operation saved are read again in its weight half, by their memory keys."""
    setattr(node, _LATER_READS, frozenset(keys))


def later_reads(node: Node) -> frozenset[int] | None:
    """Return what `note_later_reads` has noted; None if an operation says nothing of it, and may read everything."""
    return getattr(node, _LATER_READS, None)
