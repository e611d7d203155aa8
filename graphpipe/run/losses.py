"""The loss of some samples: the user's function, checked, and what a whole mini-batch makes of it."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput

LossFunction = Callable[[Any, Any], Tensor]
"""Takes the model's output and the targets of some samples, and returns the mean loss over these samples."""


def mean_loss(loss_fn: LossFunction, output: object, targets: object) -> Tensor:
    """Return the user's loss, a 0-d tensor.

    Raises:
        InvalidInput: the function returned anything else.
    """
    loss = cast(object, loss_fn(output, targets))
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point():
        return loss
    found = f"a {loss.dtype} tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    raise InvalidInput(
        f"returned {found}, must return a 0-d floating-point tensor",
        where="loss_fn",
        remedy="Return the mean over the samples given: per_sample_loss.mean().",
    )


def all_finite(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Return a 0-d boolean tensor: no floating-point tensor holds NaN or infinity. Does not wait for a GPU."""
    finite = torch.ones((), dtype=torch.bool, device=device)
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            finite &= torch.isfinite(tensor.detach()).all()
    return finite
