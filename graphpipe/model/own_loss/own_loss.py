"""A model's own loss, cut out of its forward: exact for every division of a mini-batch into micro-batches.

A cross-entropy is a mean over the labels that count, which are all but the ignored label (-100). Micro-batches have
different numbers of them, so the mean over a mini-batch is not the mean of the micro-batches' means:

    loss of the mini-batch     sum over all labels / labels that count in the mini-batch
    loss of a micro-batch      sum over its labels / (labels that count in the mini-batch x its share of the samples)

The pipeline multiplies a micro-batch's loss by its share of the samples. The sum of these is the first loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from graphpipe.graph import Input, Origin
from graphpipe.model.capture.capture import Traced
from graphpipe.model.capture.module_graph.make_module_graph import make_module_graph
from graphpipe.model.capture.reading import SAMPLES
from graphpipe.model.own_loss.loss_cut import LossCut
from graphpipe.model.own_loss.without_loss import copy_of
from graphpipe.model.torch_private import fake_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoss:
    """The loss of some samples, computed from outputs and labels as in the model's forward. It can be pickled."""

    reads: tuple[str, ...]
    """The model's outputs that it reads."""
    labels: tuple[str, ...]
    """The model's inputs that it reads."""
    formula: fx.GraphModule
    """Takes outputs, labels and, per cross-entropy, the number of counting labels per sample of the mini-batch."""
    counting: fx.GraphModule
    """Takes labels, and returns how many count in each cross-entropy."""

    def targets(self, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the targets of a whole mini-batch: its labels, and the number of counting labels per sample."""
        given = [labels[name] for name in self.labels]
        samples = len(given[0])
        counts = torch.tensor([float(count) / samples for count in self.counting(*given)], dtype=torch.float64)
        return {**{name: labels[name] for name in self.labels}, "counts": counts.expand(samples, -1)}

    def __call__(self, output: Any, targets: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of some rows of `targets`, which the pipeline multiplies by their share of the samples."""
        outputs = [output[name] for name in self.reads]
        counts = targets["counts"][0].unbind() if targets["counts"].shape[1] else ()
        return self.formula(*outputs, *(targets[name] for name in self.labels), *counts)


def own_loss(
    module: nn.Module, inputs: Sequence[Input], labels: Sequence[str], origin: Origin
) -> tuple[OwnLoss, Origin, Traced]:
    """Return the loss that a module's forward computes from labels, and how to capture the module again.

    Returns:
        loss: of the module.
        origin: to capture the module again.
        traced: the module with its loss, for `without_loss`.

    Args:
        module: returns a dict (or a dataclass of Hugging Face) with the entry `loss`.
        inputs: of its forward, the labels among them.
        labels: names of inputs that only the loss reads.
        origin: how the module is captured.

    Raises:
        InvalidInput: it does not return a loss, cannot be traced, or computes a loss that is not known to be a mean
            over labels or samples. The remedy is a loss function of the user.
    """
    mode = fake_mode()
    fake, module_graph, origin = make_module_graph(
        "export", module, tuple(inputs), origin, mode, samples=SAMPLES[0], for_loss=True
    )
    cut = LossCut.of(type(module).__name__, copy_of(module_graph), labels)
    loss = OwnLoss(
        reads=tuple(cut.outputs.values()),
        labels=tuple(cut.labels.values()),
        formula=cut.formula(),
        counting=cut.counting(),
    )
    return loss, origin, Traced(mode, fake, module_graph)
