"""The operation in which two backwards of the same kind of forward first differ."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

Given: TypeAlias = tuple[Sequence[Tensor | None], Sequence[Tensor | None]]
"""Gradients that an operation has got, and those that it has returned."""


def other_operation(one: Sequence[GradientEdge], other: Sequence[GradientEdge]) -> str:
    """Return how the operations of two graphs differ; empty if they are the same.

    Args:
        one: where gradients enter the first graph.
        other: the same of the second one, in the same order.
    """
    for first, second in _pairs(one, other):
        if first.name() != second.name():
            return f"{second.name()} is where {first.name()} was"
        if len(first.next_functions) != len(second.next_functions):
            return f"{second.name()} has {len(second.next_functions)} operands, and had {len(first.next_functions)}"
    return ""


def other_gradient(
    one: Sequence[GradientEdge], other: Sequence[GradientEdge], run: Callable[[], object], again: Callable[[], object]
) -> str:
    """Return the first operation that returns another gradient than its like, of the same gradients that arrive.

    Args:
        one: where gradients enter the first graph.
        other: the same of a second graph with the same operations.
        run: runs the backward of the first graph, which is kept.
        again: the same of the second one.

    Returns:
        The name of an operation; empty if there is none.
    """
    pairs = [*_pairs(one, other)]
    with _watching([first for first, _ in pairs]) as order, _watching([second for _, second in pairs]) as found:
        run()
        again()
    likes = dict(pairs)
    for node, (arrived, returned) in order.items():
        if (like := found.get(likes[node])) is None:
            continue
        if _alike(arrived, like[0]) and not _alike(returned, like[1]):
            return node.name()
    return ""


def _pairs(one: Sequence[GradientEdge], other: Sequence[GradientEdge]) -> Iterator[tuple[Node, Node]]:
    # As far as the graphs have the same form.
    waiting = [(first.node, second.node) for first, second in zip(one, other, strict=True)]
    seen: set[Node] = set()
    while waiting:
        first, second = waiting.pop()
        if first in seen:
            continue
        seen.add(first)
        yield first, second
        if first.name() == second.name():
            children = zip(first.next_functions, second.next_functions, strict=False)
            waiting += [(here, there) for (here, _), (there, _) in children if here is not None and there is not None]


@contextmanager
def _watching(nodes: Sequence[Node]) -> Generator[dict[Node, Given]]:
    # An operation that runs in both halves of a backward is seen in the first.
    seen: dict[Node, Given] = {}

    def watch(node: Node) -> Callable[[Sequence[Tensor | None], Sequence[Tensor | None]], None]:
        def note(returned: Sequence[Tensor | None], arrived: Sequence[Tensor | None]) -> None:
            seen.setdefault(node, (arrived, returned))

        return note

    handles = [node.register_hook(watch(node)) for node in nodes]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _alike(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    both = [(here, there) for here, there in zip(one, other, strict=False) if here is not None and there is not None]
    return all(torch.equal(here.to_dense().nan_to_num(), there.to_dense().nan_to_num()) for here, there in both)
