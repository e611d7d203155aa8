"""The cross-entropy of logits whose columns ranks divide (Megatron-LM, Shoeybi et al. 2019, section 3).

    loss = log(sum of exp(x - m)) + m - x[label]        m: the maximum of all columns
    gradient = softmax - 1 at the label                 each rank has that of its columns

For each label the ranks exchange the maximum, and sum two numbers. They have the same losses afterwards.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from graphpipe.graph.op_shards import HALF
from graphpipe.model.shards.team import ShardTeam, apply

Reduction = Literal["none", "mean", "sum"]


def divided_cross_entropy(
    columns: Tensor,
    labels: Tensor,
    team: ShardTeam,
    *,
    start: int,
    total: int,
    ignored: int,
    smoothing: float,
    reduction: Reduction,
) -> Tensor:
    """Return what `torch.nn.functional.cross_entropy` returns for the logits of all ranks, on all ranks.

    Args:
        columns: of this rank, (labels, columns).
        labels: (labels,), whole numbers.
        team: the ranks.
        start: the first column of this rank.
        total: columns of all ranks.
        ignored: the label that does not count.
        smoothing: of labels.
        reduction: of the losses.

    Raises:
        IndexError: a label is none of the columns. On an accelerator this is not looked at.
    """
    counts = labels != ignored
    if labels.device.type == "cpu" and bool((((labels < 0) | (labels >= total)) & counts).any()):
        raise IndexError(f"a label is not in the vocabulary, which has {total} words")
    losses = apply(_Losses, columns, labels, counts, team, start, total, smoothing)
    kind = columns.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        losses = losses.to(columns.dtype)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / counts.sum()


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        columns: Tensor,
        labels: Tensor,
        counts: Tensor,
        team: ShardTeam,
        start: int,
        total: int,
        smoothing: float,
    ) -> Tensor:
        values = columns.double() if columns.dtype == torch.float64 else columns.float()
        own = values.amax(-1)
        team.note("forward", own, HALF)
        most = torch.stack(team.gather(own)).amax(0)
        inside = labels - start
        here = counts & (inside >= 0) & (inside < columns.shape[-1])
        at = torch.where(here, inside, 0)
        labelled = values.gather(-1, at[:, None])[:, 0].masked_fill(~here, 0.0)
        exponents = torch.exp(values - most[:, None])
        summed = [exponents.sum(-1), labelled, *([values.sum(-1)] if smoothing else [])]
        sums = torch.stack(summed)
        team.note("forward", sums)
        team.add_up(sums)
        rest = sums[0].log() + most
        losses = rest - sums[1]
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (rest - sums[2] / total)
        ctx.save_for_backward(exponents.div_(sums[0][:, None]), at, here, counts)
        ctx.smoothing, ctx.total, ctx.dtype = smoothing, total, columns.dtype
        return losses.masked_fill(~counts, 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        softmax, at, here, counts = ctx.saved_tensors
        given = (grad_outputs[0].to(softmax.dtype) * counts)[:, None]
        gradient = softmax * given
        if ctx.smoothing:
            gradient -= given * (ctx.smoothing / ctx.total)
        gradient.scatter_add_(-1, at[:, None], -(1 - ctx.smoothing) * given * here[:, None])
        return gradient.to(ctx.dtype), None, None, None, None, None, None
