"""The series-parallel tree: which operators follow one another and which stand side by side."""

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
    """Parts one after the other: no path leads from a part to an earlier one. No part is itself a Series."""

    parts: tuple[Leaf | Parallel, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the operators from left to right: a topological order."""
        return tuple(_leaves(self))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Two or more branches side by side: no path joins two of them. Fork and join stand outside.

    No branch is a lone Parallel, and none is empty.
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
