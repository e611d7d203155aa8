"""What backwards begin with that are only compared: gradients of outputs that do not depend on a loss."""

from collections.abc import Mapping

import torch
from torch import Tensor

_ELEMENTS, _SHARE = 2**17, 50
"""Of weights whose gradients are compared: so many, or one of so many elements of a stage."""


def fixed_gradient(value: Tensor, start: int) -> Tensor:
    """Return other numbers for each sample and element, the same however samples are divided.

    Args:
        value: with samples in its first dimension.
        start: the number of its first sample.
    """
    count = value[:1].numel()
    numbers = torch.arange(start * count, start * count + value.numel(), device=value.device)
    return torch.cos(numbers.to(value.dtype)).reshape(value.shape)


def small_ones(trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the smaller parameters, such as biases and the weights of norms.

    Gradients of all would take as much memory as weights.
    """
    left = max(_ELEMENTS, sum(each.numel() for each in trained.values()) / _SHARE)
    found: set[str] = set()
    for name in sorted(trained, key=lambda name: trained[name].numel()):
        left -= trained[name].numel()
        if left < 0 and found:
            break
        found.add(name)
    return {name: each for name, each in trained.items() if name in found}
