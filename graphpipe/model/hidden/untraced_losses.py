"""Losses of torch that do not run on tensors without data: connectionist temporal classification (CTC).

Torch reads its lengths on the host. While a forward is traced, an operator of our own stands for it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_REDUCTIONS = ("none", "mean", "sum")
"""By the numbers that torch gives them."""
_LOSS = torch.ctc_loss


@torch.library.custom_op("graphpipe::ctc", mutates_args=())
def ctc(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    """Return the CTC loss, with the arguments of `torch.nn.functional.ctc_loss`."""
    number = _REDUCTIONS.index(reduction)
    return _LOSS(scores, targets, input_lengths, target_lengths, blank, number, zero_infinity).clone()


@ctc.register_fake
def _(
    scores: Tensor, targets: Tensor, lengths: Tensor, others: Tensor, blank: int, reduction: str, zero: bool
) -> Tensor:
    del targets, lengths, others, blank, zero
    return scores.new_empty((scores.shape[1],) if reduction == "none" and scores.dim() > 2 else ())


CTC: Any = torch.ops.graphpipe.ctc.default
"""The operator."""


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.rest = inputs[len(tensors) :]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, targets, lengths, target_lengths = ctx.saved_tensors
    with torch.enable_grad():
        again = scores.detach().requires_grad_()
        blank, reduction, zero_infinity = ctx.rest
        loss = _LOSS(again, targets, lengths, target_lengths, blank, _REDUCTIONS.index(reduction), zero_infinity)
        (found,) = torch.autograd.grad(loss, again, gradient)
    return (found, *[None] * 6)


ctc.register_autograd(_backward, setup_context=_keep)


@contextmanager
def traced_losses() -> Generator[None]:
    """While inside, such a loss is one operator."""

    def as_one(
        scores: Tensor,
        targets: Tensor,
        lengths: Any,
        others: Any,
        blank: int = 0,
        reduction: int = 1,
        zero: bool = False,
    ) -> Tensor:
        if not isinstance(lengths, Tensor) or not isinstance(others, Tensor):
            return _LOSS(scores, targets, lengths, others, blank, reduction, zero)
        return ctc(scores, targets, lengths, others, blank, _REDUCTIONS[reduction], zero)

    torch.ctc_loss = as_one
    try:
        yield
    finally:
        torch.ctc_loss = _LOSS
