"""A model of the zoo: a module, example inputs, and what training needs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor, nn

Batch = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """A model of the zoo, at one size."""

    module: nn.Module
    example_inputs: dict[str, Tensor]
    """Inputs of two samples by model input name, on the module's device."""
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    """Returns the mean loss over the samples: (output, targets) -> loss."""
    batch: Callable[[Generator, int], Batch]
    """Returns samples of a task that can be learned, on the CPU: (generator, samples) -> (inputs, targets)."""


def assemble(
    module: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batch: Callable[[Generator, int], Batch],
    device: str,
) -> ZooModel:
    """Return the zoo model whose example inputs are two samples of its own task."""
    inputs, _ = batch(torch.Generator().manual_seed(0), 2)
    examples = {name: tensor.to(device) for name, tensor in inputs.items()}
    return ZooModel(module=module, example_inputs=examples, loss_fn=loss_fn, batch=batch)


def multiple_of(other: str, default: int) -> int:
    """Return the declaration of a size with this default, which must be a multiple of the size named `other`."""
    return field(default=default, metadata={"multiple_of": other})
