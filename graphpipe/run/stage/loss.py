"""The user's loss function: the check of what it returns. Also the sums that find NaN and infinity in tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphpipe.errors import InvalidInput

LossFunction = Callable[[Any, Any], Tensor]
"""Takes the model's output and the targets of some samples, and returns the mean loss over these samples."""


def checked_loss(loss: object) -> Tensor:
    """Return what the user's function returned as a 0-d tensor of at least float32.

    Its gradient may be scaled beyond float16.

    Raises:
        InvalidInput: it is anything else, or a loss without a gradient.
    """
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point():
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise InvalidInput(
                "returned a loss that does not depend on any trainable parameter",
                where="loss_fn",
                remedy="Compute it from the outputs without .detach(), .item() and torch.no_grad(), and leave some "
                "parameter trainable.",
            )
        return loss if loss.dtype is torch.float32 else loss.to(torch.promote_types(loss.dtype, torch.float32))
    raise InvalidInput(
        f"returned {kind_of(loss)}, must return a 0-d floating-point tensor",
        where="loss_fn",
        remedy="Return the mean over the samples given: per_sample_loss.mean().",
    )


def kind_of(value: object) -> str:
    """Describe a value that a user's function returned, for the end of a sentence."""
    return (
        f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    )


def is_exact(tensor: Tensor) -> bool:
    """True for integers and booleans, which are always finite."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def sum_of(tensor: Tensor) -> Tensor:
    """Return the sum of all elements (0-d). It is NaN or infinite if any element is. Does not wait for a GPU.

    It takes one pass over the memory, without a temporary. Finite numbers add up to infinity only if they are about as
    large as the largest of float32.
    """
    detached = tensor.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached)
    if not detached.ndim:
        return detached
    return detached.sum(dtype=torch.promote_types(detached.dtype, torch.float32))
