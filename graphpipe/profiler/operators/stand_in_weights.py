"""Values for the weights of a model without data, while one operator of it is measured."""

import torch
from torch import nn

_SIZE = 0.02
"""The standard deviation of the values, so that neither infinities nor tiny numbers change the time."""


@torch.no_grad()
def fill_meta_tensors(module: nn.Module) -> None:
    """Give the tensors of the meta device in a module memory and values of the usual size.

    Buffers become ones if they are floating point, such as variances, and zeros otherwise, such as positions.
    """
    for part in module.modules():
        for name, parameter in [*part.named_parameters(recurse=False)]:
            if parameter.is_meta:
                made = torch.empty_like(parameter, device="cpu")
                made = made.normal_(std=_SIZE) if made.is_floating_point() else made.zero_()
                setattr(part, name, nn.Parameter(made, parameter.requires_grad))
        for name, buffer in [*part.named_buffers(recurse=False)]:
            if buffer.is_meta:
                setattr(part, name, torch.full_like(buffer, float(buffer.is_floating_point()), device="cpu"))
