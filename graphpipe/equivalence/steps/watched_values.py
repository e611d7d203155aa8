"""What submodules return in a step, and the gradients that arrive there, to find the first operator that differs."""

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.run.stage.tensor_tree import leaves

GRADIENT = "gradient of "
"""Before the path of a submodule: the gradient that arrives at what it returned."""


@contextmanager
def watched_values(model: nn.Module, paths: Collection[str]) -> Generator[dict[str, list[Tensor]]]:
    """While inside, note what submodules return where gradients are recorded, by their paths and in order of calls."""
    values: dict[str, list[Tensor]] = {}
    handles = [model.get_submodule(path).register_forward_hook(_noting(path, values)) for path in paths]
    try:
        yield values
    finally:
        for handle in handles:
            handle.remove()


def joined(values: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return the values of all micro-batches, joined by samples, where they can be joined."""
    return {path: torch.cat(parts) for path, parts in values.items() if len({each.shape[1:] for each in parts}) == 1}


def _noting(path: str, values: dict[str, list[Tensor]]) -> Callable[[nn.Module, Any, Any], None]:
    def note(_: nn.Module, __: Any, result: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for number, tensor in enumerate(leaves(result)):
            if not tensor.dim() or not tensor.is_floating_point():
                continue
            name = path if not number else f"{path}, result {number}"
            values.setdefault(name, []).append(tensor.detach().clone())
            if tensor.requires_grad:
                tensor.register_hook(_keeping(values.setdefault(GRADIENT + name, [])))

    return note


def _keeping(found: list[Tensor]) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        found.append(gradient.detach().clone())

    return keep
