"""The series-parallel tree: which operators are in sequence and which are side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def inner_first(tree: Series) -> Iterator[Series]:
    """Yield all series of a tree, the inner ones before those around them. Trees may be thousands of levels deep."""
    found, stack = list[Series](), [tree]
    while stack:
        series = stack.pop()
        found.append(series)
        for part in series.parts:
            if isinstance(part, Parallel):
                stack.extend(part.branches)
    return reversed(found)


def rewritten(tree: Series, parts_of: Callable[[Parallel, list[Series]], Sequence[Leaf | Parallel]]) -> Series:
    """Return a tree in which `parts_of` has replaced each parallel block, given its branches as they are rewritten."""
    known: dict[int, Series] = {}
    for series in inner_first(tree):
        parts: list[Leaf | Parallel] = []
        for part in series.parts:
            branches = [] if isinstance(part, Leaf) else [known[id(branch)] for branch in part.branches]
            parts += [part] if isinstance(part, Leaf) else parts_of(part, branches)
        known[id(series)] = Series(tuple(parts))
    return known[id(tree)]


def _leaves(tree: Series | Parallel) -> Iterator[str]:
    stack: list[Leaf | Series | Parallel] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            yield node.op
        else:
            stack.extend(reversed(node.parts if isinstance(node, Series) else node.branches))
