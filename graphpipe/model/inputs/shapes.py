"""The description of inputs in a graph, and tensors that fit it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphpipe.graph import Input


def describe(named: Mapping[str, Tensor]) -> tuple[Input, ...]:
    """Return the description of inputs that a graph contains."""
    return tuple(
        Input(name=name, sample_shape=tuple(tensor.shape[1:]), dtype=str(tensor.dtype).removeprefix("torch."))
        for name, tensor in named.items()
    )


def blank(inputs: Sequence[Input], samples: int) -> dict[str, Tensor]:
    """Return uninitialised tensors of the inputs' shapes; in a fake mode they use no memory."""
    return {
        item.name: torch.empty((samples, *item.sample_shape), dtype=getattr(torch, item.dtype), device="cpu")
        for item in inputs
    }
