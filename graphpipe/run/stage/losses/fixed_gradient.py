"""Gradients for values that no loss is computed from, so that a backward can be tried."""

import torch
from torch import Tensor


def fixed_gradient(value: Tensor, start: int) -> Tensor:
    """Return a gradient that differs for each sample and element, and is the same however samples are divided.

    Args:
        value: [samples, ...], of consecutive samples.
        start: the number of its first sample.
    """
    count = value[:1].numel()
    numbers = torch.arange(start * count, start * count + value.numel(), device=value.device)
    return torch.cos(numbers.to(value.dtype)).reshape(value.shape)
