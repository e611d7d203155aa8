"""A smaller mini-batch, as the last one of an epoch, trained exactly by a plan whose micro-batches do not divide it.

Rows are repeated up to the plan's number of samples. The loss of a micro-batch is that of its real rows only:

    plan for 8, mini-batch of 5      0 1 | 2 3 | 4 0 | 0 0
    real rows of each micro-batch     2  |  2  |  1  |  0
    its loss                         mean of the real rows x real rows / rows x 8 / 5

The pipeline multiplies each by its share of the 8 samples. The sum of these is the mean over the 5 samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphpipe.run.stage.tensor_tree import leaves, map_tensors

Loss = Callable[[Any, Any], Tensor]
_REAL, _SCALE, _TARGETS = "graphpipe: real rows", "graphpipe: scale", "graphpipe: targets"


def fill(inputs: Mapping[str, Tensor], targets: Any, samples: int) -> tuple[dict[str, Tensor], Any]:
    """Return inputs and targets of `samples` samples, for a pipeline whose loss function is a `LossOfRealRows`.

    Args:
        inputs: of a mini-batch with fewer samples, which are their first dimension.
        targets: of the same.
        samples: of the plan's mini-batch.
    """
    count = len(next(iter(inputs.values())))

    def filled(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor[:1].expand(samples - count, *tensor.shape[1:])])

    real = torch.arange(samples) < count
    scale = torch.full((samples,), samples / count, dtype=torch.float64)
    return (
        {name: filled(tensor) for name, tensor in inputs.items()},
        {_REAL: real, _SCALE: scale, _TARGETS: map_tensors(targets, filled)},
    )


@dataclass(frozen=True, slots=True)
class LossOfRealRows:
    """A loss function that leaves out the rows which `fill` has added."""

    function: Loss
    """Of outputs and targets: a mean over samples, or over labels that are counted in the whole mini-batch."""

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """Return the loss of some rows of a mini-batch, filled or not."""
        if not (isinstance(targets, Mapping) and _REAL in targets):
            return self.function(output, targets)
        real: Tensor = targets[_REAL]
        rows, count = len(real), int(real.sum())
        if not count:
            return torch.stack(
                [each.reshape(-1)[:0].sum() for each in leaves(output) if each.is_floating_point()]
            ).sum()

        def cut(tensor: Tensor) -> Tensor:
            return tensor[:count] if tensor.dim() and len(tensor) == rows else tensor

        loss = self.function(map_tensors(output, cut), map_tensors(targets[_TARGETS], cut))
        return loss * (count / rows * float(targets[_SCALE][0]))
