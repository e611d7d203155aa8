"""The loss of a micro-batch, such that the weighted sum over micro-batches is the loss of the mini-batch.

The pipeline multiplies the loss of a micro-batch by its share of the samples, and adds these up:

    a mean over samples             as it is
    a mean with weights             times its share of the weights, divided by its share of the samples
    a pair (sum, weight)            sum / samples; the step is divided by weights / samples of the mini-batch at its end

If a rank has only its own targets, a mean with weights is treated as the pair of mean times weights, and weights.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.stage.loss import checked_loss
from graphpipe.run.stage.losses.check_leaves import check_leaves, check_module
from graphpipe.run.stage.losses.check_mean import check_mean, joined
from graphpipe.run.stage.losses.loss_buffers import warning_of_changes
from graphpipe.run.stage.losses.weighted_loss import WeightedLoss, once, recognised
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.run.stage.tensor_tree import find_unknown_type, leaves, map_tensors


class LossOfRows(NamedTuple):
    """The loss of some samples."""

    loss: Tensor
    """0-d; the pipeline multiplies it by the share of the samples."""
    weight: Tensor | None
    """0-d: the weight that the loss function returned with a sum. None if it returned a mean."""


@dataclass(slots=True, kw_only=True)
class SampleLoss:
    """The user's loss function."""

    function: Callable[[Any, Any], Any]
    weighted: WeightedLoss | None
    """The function, if its mean has weights."""
    checked: bool
    """Whether the first steps check that it is such a mean. What torch defines is known."""
    trained: set[int] = field(default_factory=set[int])
    """Identities of parameters of the model that the loss may read beside the outputs."""
    _total: tuple[MiniBatch | None, float] = (None, 0.0)
    """The last mini-batch, and the sum of its weights."""
    _one: tuple[Any, Any] | None = None
    """Output and targets of a micro-batch of one sample, in a step that is checked."""

    @staticmethod
    def of(loss_fn: Callable[[Any, Any], Any]) -> "SampleLoss":
        """Return a loss function with its weights.

        Raises:
            InvalidInput: it is a module with trainable parameters.
        """
        known = recognised(loss_fn)
        if known is None and isinstance(loss_fn, WeightedLoss):
            known = loss_fn
        check_module(loss_fn.function if isinstance(loss_fn, WeightedLoss) else loss_fn)
        torch_own = known is not None and known is not loss_fn
        return SampleLoss(function=loss_fn, weighted=known, checked=not torch_own)

    def __call__(self, output: Any, targets: Any) -> Any:
        """Return what the user's function returns."""
        return self.function(output, targets)

    def of_rows(self, output: Any, batch: MiniBatch, rows: SampleRange, device: torch.device) -> LossOfRows:
        """Return the loss of some samples of a mini-batch.

        Args:
            output: of the model, for these samples.
            batch: the mini-batch.
            rows: the samples.
            device: of the output.

        Raises:
            InvalidInput: the function returned something else; or, in the first step, it trains parameters of its own,
                or is no such mean.
        """
        targets = batch.target_rows(rows, device)
        factor, weight = self._weights(batch, targets, rows, device)
        if factor == 0:
            return LossOfRows(_nothing(output), weight)
        begins = [each.grad_fn for each in leaves(output) if each.grad_fn is not None]
        first = batch.training and batch.step == 1 and rows.start == 0 and len(rows) < batch.size
        with warning_of_changes(self.function) if first else nullcontext():
            found = self._call(output, targets, len(rows))
        if isinstance(found, tuple):
            result = _pair(found, len(rows))
        else:
            loss = checked_loss(found)
            # A tensor, because autograd does not show a number to those that bring what a forward has saved elsewhere.
            weighs = factor != 1 or (self.weighted is not None and len(rows) < batch.size)
            result = LossOfRows(loss * torch.full_like(loss, factor) if weighs else loss, weight)
        if batch.training and is_power_of_two(batch.step) and find_unknown_type(output) is None:
            if torch.is_grad_enabled():
                check_leaves(result.loss, leaves(output), begins, self.trained)
            if self.checked and len(rows) < batch.size:
                self._check_mean(output, targets, batch)
        return result

    def _call(self, output: Any, targets: Any, samples: int) -> Any:
        try:
            return self.function(output, targets)
        except Exception as error:
            error.add_note(f"loss_fn was called with a micro-batch, whose number of samples is {samples}.")
            raise

    @property
    def weighs(self) -> bool:
        """Whether the loss of some samples depends on the targets of all, through the sum of their weights."""
        return self.weighted is not None and self.weighted.weight is not once

    def weighs_apart(self, batch: MiniBatch) -> bool:
        """Return whether the weights of a mean are summed after the losses: no rank has the targets of all samples."""
        return self.weighs and batch.weighs_apart

    def weight_of(self, batch: MiniBatch) -> float:
        """Return what the loss of a mini-batch counts in a mean over several, where every rank has all targets."""
        if self.weighted is None or not self.weighs:
            return batch.size
        return float(self.weighted.weight(batch.targets))

    def _check_mean(self, output: Any, targets: Any, batch: MiniBatch) -> None:
        given = (map_tensors(output, Tensor.detach), targets)
        if batch.size > 1 and all(len(each) == 1 for each in leaves(given) if each.dim()):
            before, self._one = self._one, given  # samples are compared with those of the micro-batch before
            given = joined(before, given) if before is not None else given
        check_mean(self.function, *given, first=batch.step == 1)

    def _weights(
        self, batch: MiniBatch, targets: Any, rows: SampleRange, device: torch.device
    ) -> tuple[float, Tensor | None]:
        # What the mean of some samples is multiplied by, and the weight that the step is divided by at its end.
        if self.weighted is None:
            return 1.0, None
        if self.weighs_apart(batch):
            weight = float(self.weighted.weight(targets))
            return weight / len(rows), torch.as_tensor(weight, dtype=torch.float64, device=device)
        return self._factor(self.weighted, batch, targets, rows), None

    def _factor(self, weighted: WeightedLoss, batch: MiniBatch, targets: Any, rows: SampleRange) -> float:
        if self._total[0] is not batch:
            self._total = (batch, float(weighted.weight(batch.targets)))
        total = self._total[1]
        if len(rows) == batch.size or not total:  # a mini-batch in which nothing counts is as in plain PyTorch
            return 1.0
        return float(weighted.weight(targets)) / total * batch.size / len(rows)


def is_power_of_two(step: int) -> bool:
    """Return whether a step is one of those in which losses and backwards are compared again."""
    return not step & (step - 1)


def _nothing(output: Any) -> Tensor:
    # 0, with a gradient of zeros for the output: no sample counts.
    found = [each.reshape(-1)[:0].sum(dtype=torch.float32) for each in leaves(output) if each.is_floating_point()]
    return torch.stack(found).sum()


def _pair(found: tuple[Any, ...], rows: int) -> LossOfRows:
    if len(found) != 2 or not all(isinstance(each, Tensor | int | float) for each in found):
        raise InvalidInput(
            f"returned a tuple of {len(found)}",
            where="loss_fn",
            remedy="Return the mean over the samples given, or the sum of losses and the sum of weights.",
        )
    total, weight = found
    loss = checked_loss(total)
    return LossOfRows(loss / rows, torch.as_tensor(weight, dtype=torch.float64, device=loss.device).detach())


def loss_of(
    loss_fn: Callable[[Any, Any], Any], output: Any, batch: MiniBatch, rows: SampleRange, device: torch.device
) -> LossOfRows:
    """Return the loss of some samples, as `SampleLoss.of_rows`."""
    known = loss_fn if isinstance(loss_fn, SampleLoss) else SampleLoss.of(loss_fn)
    return known.of_rows(output, batch, rows, device)


def check_pair(*, segment: bool) -> None:
    """Check that the loss function may return a sum and its weight.

    Raises:
        InvalidInput: weights are updated before those of all micro-batches are known.
    """
    if segment:
        raise InvalidInput(
            "returned a sum and its weight, and without a flush weights are updated before all are known",
            where="loss_fn",
            remedy="Give gp.WeightedLoss(loss_fn, weight=...), whose weights follow from the targets.",
        )


def trainable(module: nn.Module) -> set[int]:
    """Return the identities of the trainable parameters of a module."""
    return {id(each) for each in module.parameters() if each.requires_grad}
