"""Which trainable tensors a result depends on, read from the graph that autograd has recorded."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def reached_leaves(results: Iterable[Tensor], beside: Iterable[Tensor] = ()) -> list[Tensor]:
    """Return the leaves that need a gradient and that the results depend on, each once.

    Args:
        results: to begin from.
        beside: values through which nothing is followed.
    """
    found: dict[int, Tensor] = {}
    waiting: list[Any] = []
    for result in results:
        if result.grad_fn is not None:
            waiting.append(result.grad_fn)
        elif result.requires_grad:
            found[id(result)] = result
    seen = {each.grad_fn for each in beside if each.grad_fn is not None}
    waiting = [each for each in waiting if each not in seen]
    seen |= {*waiting}
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)  # of the node that adds to a leaf's gradient
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return [*found.values()]
