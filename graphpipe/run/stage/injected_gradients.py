"""Gradients that a backward adds by itself, such as those of a balance loss of experts.

They are added for each micro-batch, and so grow with the number of micro-batches.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from graphpipe.errors import InvalidInput

_REENTRANT = "CheckpointFunctionBackward"
"""The name of the operation of `torch.utils.checkpoint(use_reentrant=True)`."""


def check_no_injection(
    roots: Sequence[Tensor], received: Mapping[str, Tensor], *, trained: Mapping[str, Tensor], stage: str
) -> None:
    """Check that a backward gives no gradients if it is given zeros. The graph is kept.

    Only a backward with operations that were written in Python is tried, and none with a reentrant checkpoint, which
    refuses to give gradients that are not added to those of weights.

    Args:
        roots: where the backward begins.
        received: values from other stages that need a gradient, by name.
        trained: parameters that need one, by name.
        stage: its name.

    Raises:
        InvalidInput: a leaf gets a gradient.
    """
    leaves, nodes = {**trained, **received}, _nodes(roots)
    if not leaves or not any(isinstance(node, BackwardCFunction) for node in nodes):
        return
    if any(node.name() == _REENTRANT for node in nodes):
        return
    zeros = [torch.zeros_like(root) for root in roots]
    found = torch.autograd.grad(roots, [*leaves.values()], zeros, retain_graph=True, allow_unused=True)
    gradients = cast("Sequence[Tensor | None]", found)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None and bool(((gradient != 0) & ~gradient.isnan()).any()):
            raise InvalidInput(
                f"'{name}' gets a gradient although the loss gives none: a backward written by hand adds it, once for "
                "each micro-batch",
                where=f"stage '{stage}'",
                remedy="Return what it comes from, such as a balance loss, and add it in loss_fn. Or give the "
                "submodule the whole mini-batch (whole_batch=[...]).",
            )


def _nodes(roots: Sequence[Tensor]) -> set[Node]:
    stack: list[Node] = [root.grad_fn for root in roots if root.requires_grad]  # pyright: ignore[reportAssignmentType]
    seen = set[Node]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [each for each, _ in node.next_functions if each is not None]
    return seen
