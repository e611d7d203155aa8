"""Losses of torch that do not run on tensors without data: connectionist temporal classification (CTC).

Torch reads its lengths on the host. While a forward is traced, an operator of our own stands for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import ctc_loss
from torch.overrides import TorchFunctionMode

_NAMES = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")


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
    return ctc_loss(scores, targets, input_lengths, target_lengths, blank, reduction, zero_infinity).clone()


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
    scores, *others = ctx.saved_tensors
    with torch.enable_grad():
        again = scores.detach().requires_grad_()
        loss = ctc_loss(again, *others, *ctx.rest)
        (found,) = torch.autograd.grad(loss, again, gradient)
    return (found, *(None for _ in (*others, *ctx.rest)))


ctc.register_autograd(_backward, setup_context=_keep)


class TracedLosses(TorchFunctionMode):
    """While inside, such a loss is traced as one operator."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function, or the operator that stands for it."""
        given = {**dict(zip(_NAMES, args, strict=False)), **(kwargs or {})}
        if func is not ctc_loss or not all(isinstance(given[name], Tensor) for name in _NAMES[:4]):
            return func(*args, **(kwargs or {}))
        options = given.get("blank", 0), given.get("reduction", "mean"), given.get("zero_infinity", False)
        return ctc(*(given[name] for name in _NAMES[:4]), *options)
