"""One rank's share of a mini-batch: what it gives the pipeline in place of all inputs and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """The rows of a mini-batch that one rank consumes, as `Pipeline.needs` names them.

    `Pipeline.step`, `segment` and `evaluate_all` take it in place of a whole mini-batch. Then all ranks give shares, of
    the same samples. Every input has the shape and dtype of the example that the plan was made with.
    """

    samples: Sequence[int]
    """A number for each sample of the whole mini-batch, in order, such as its index in a data set. The ranks compare
    these numbers before every step."""
    inputs: Mapping[str, Tensor]
    """The inputs that this rank needs, by name, with the rows that it needs."""
    targets: Any = None
    """The targets that this rank needs, with the rows that it needs; None where it needs none."""
    with_targets: bool = True
    """False if no rank gives targets: an evaluation then computes no loss."""


InputsOrShare = Inputs | BatchShare
"""The inputs of a whole mini-batch, or a rank's share of inputs and targets."""
GivenBatch = tuple[Inputs, Any] | BatchShare
"""Inputs and targets of a whole mini-batch, or a rank's share of them."""


def given_batch(inputs: InputsOrShare, targets: Any) -> GivenBatch:
    """Return the arguments of `Pipeline.step` as one value.

    Raises:
        InvalidInput: targets were given beside a share, which has its own.
    """
    if not isinstance(inputs, BatchShare):
        return inputs, targets
    if targets is not None:
        raise InvalidInput("were given beside a share, which has its own", where="targets")
    return inputs
