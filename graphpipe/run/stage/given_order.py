"""A mini-batch whose samples were put into another order, for a stage that must see them as they were given."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphpipe.run.stage.receive_buffers import NamedTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOrder:
    """The order in which samples were given. A stage with the whole mini-batch computes in this order.

    Its loss may depend on the order of the samples, such as one over a matrix of all pairs with a mask.
    """

    inputs: NamedTensors
    """Of the model by name, as they were given."""
    targets: Any
    """As they were given."""
    order: Tensor
    """[samples], int64: which of the given samples is at each place of the mini-batch."""
    places: Tensor
    """[samples], int64: the place of each given sample."""

    def given(self, values: NamedTensors) -> NamedTensors:
        """Return values of the mini-batch's samples in the order in which these were given."""
        return {name: value.index_select(0, self.places.to(value.device)) for name, value in values.items()}

    def placed(self, values: NamedTensors) -> NamedTensors:
        """Return values in the given order in that of the mini-batch."""
        return {name: value.index_select(0, self.order.to(value.device)) for name, value in values.items()}
