"""A model's own loss, cut out of its forward: exact however the mini-batch is cut into micro-batches.

A cross-entropy is a mean over the labels that count: those that are not the ignored one (-100). Micro-batches hold
unequal numbers of them, so the mean over a mini-batch is not the mean of the micro-batches' means:

    loss of the mini-batch     sum over all labels / labels that count in the mini-batch
    loss of a micro-batch      sum over its labels / (labels that count in the mini-batch x its share of the samples)

The pipeline weighs a micro-batch's loss with its share of the samples, which leaves the first from the second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.graph import Input, Origin
from graphpipe.model.capture.capture import trace
from graphpipe.model.own_loss.loss_cut import LossCut
from graphpipe.model.torch_private import fake_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoss:
    """The loss of some samples, as the model's forward makes it of its outputs and of labels."""

    reads: tuple[str, ...]
    """The model's outputs it is made of."""
    labels: tuple[str, ...]
    """The other inputs it is made of."""
    formula: fx.GraphModule
    """Takes outputs, labels and, per cross-entropy, the labels that count per sample of the mini-batch."""
    counting: fx.GraphModule
    """Takes labels, returns how many count in each cross-entropy."""

    def targets(self, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the targets of a whole mini-batch: its labels, and how many count per sample."""
        given = [labels[name] for name in self.labels]
        samples = len(given[0])
        counts = torch.tensor([float(count) / samples for count in self.counting(*given)], dtype=torch.float64)
        return {**{name: labels[name] for name in self.labels}, "counts": counts.expand(samples, -1)}

    def __call__(self, output: Any, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of the samples of some rows of `targets`, for a pipeline that weighs it with their share."""
        outputs = [output[name] for name in self.reads]
        counts = targets["counts"][0].unbind() if targets["counts"].shape[1] else ()
        return self.formula(*outputs, *(targets[name] for name in self.labels), *counts)


def own_loss(
    module: nn.Module, inputs: Sequence[Input], labels: Sequence[str], origin: Origin
) -> tuple[OwnLoss, Origin]:
    """Return the loss that a module's forward computes when it is given labels, and how to capture the module again.

    Args:
        module: returns a dict (or a dataclass of Hugging Face) with the entry `loss`.
        inputs: of its forward, the labels among them.
        labels: names of inputs that are for the loss alone.
        origin: how the module is captured.

    Raises:
        InvalidInput: it returns no loss, cannot be traced, or makes its loss in a way that is not known to be a mean
            over labels or samples; then a loss function of one's own is the way out.
    """
    _, skeleton, origin = trace("export", module, tuple(inputs), origin, fake_mode())
    cut = LossCut.of(type(module).__name__, skeleton, labels)
    loss = OwnLoss(
        reads=tuple(cut.outputs.values()),
        labels=tuple(cut.labels.values()),
        formula=cut.formula(),
        counting=cut.counting(),
    )
    return loss, origin
