"""The series-parallel tree: which operators are in sequence and which are side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """One operator."""

    op: str

    @property
    def ops(self) -> tuple[str]:
        """The operator's name."""
        return (self.op,)


@dataclass(frozen=True, slots=True)
class Series:
    """Parts one after the other. A path never leads from a part to an earlier one. A part is never a Series."""

    parts: tuple[Leaf | Parallel, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operators from left to right: a topological order."""
        return tuple(_leaves(self))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Two or more branches side by side, not joined by any path. Fork and join are outside.

    A branch is never empty, and never consists of a single Parallel.
    """

    branches: tuple[Series, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operators, branch after branch: a topological order."""
        return tuple(_leaves(self))


def _leaves(tree: Series | Parallel) -> Iterator[str]:
    stack: list[Leaf | Series | Parallel] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            yield node.op
        else:
            stack.extend(reversed(node.parts if isinstance(node, Series) else node.branches))
