"""A micro-batch between its forward and its backward, and what a stage keeps of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphpipe.run.stage.edge_values import gradient_of
from graphpipe.run.stage.receive_buffers import Values
from graphpipe.run.stage.recompute import Forgetful
from graphpipe.run.stage.releasable_tensors import Shelf
from graphpipe.run.stage.split_backward import WeightHalf, input_half

Around = Callable[[list[Tensor]], AbstractContextManager[None]]


class Computed(NamedTuple):
    """What a stage has computed of a micro-batch."""

    outputs: Values
    result: Any
    """The model's output, at its output stage."""
    loss: Tensor | None
    """Mean over the samples of the micro-batch on this replica."""


@dataclass(slots=True, kw_only=True)
class Flight:
    """A micro-batch under way."""

    received: dict[int, Values]
    """What was received, by edge: leaves, where a gradient goes back."""
    share: float
    """Its part of the mini-batch: weighed with it, losses of replicas and micro-batches are summed."""
    scale: float
    """Gradients are multiplied by it."""
    compute: Callable[[], Computed]
    forgetful: Forgetful | None
    """Given, what the forward computes is forgotten, and computed again for the backward."""
    shelf: Shelf | None
    """Given, the backward comes in two halves."""
    _computed: Computed | None = None
    _ends: bool = False
    """Whether a loss was computed here: where gradients begin, if none arrive."""
    _buffers: Values = field(default_factory=Values)

    def forward(self) -> Computed:
        """Compute, and keep what the backward needs."""
        if self.forgetful is None:
            computed = self.compute() if self.shelf is None else self._record()
            self._keep(computed)
            return computed
        with torch.no_grad():
            computed, self._buffers = self.forgetful.first(self.compute)
        self._ends = computed.loss is not None
        return computed

    def backward(self, arrived: Values, around: Around | None = None) -> None:
        """Add gradients to the parameters' and to those of what was received, given those of the outputs.

        Args:
            arrived: gradients of the outputs, by name.
            around: takes where the backward begins, and returns what to be inside of while it runs.
        """
        roots, gradients = self._roots(arrived)
        if roots and around is not None:
            with around(roots):
                torch.autograd.backward(roots, gradients)
        elif roots:
            torch.autograd.backward(roots, gradients)

    def input_half(self, arrived: Values, *, check: bool) -> WeightHalf:
        """Do the half of the backward that concerns what was received, and return the other half."""
        assert self.shelf is not None
        roots, gradients = self._roots(arrived)
        leaves = [leaf for by_name in self.received.values() for leaf in by_name.values() if leaf.requires_grad]
        return input_half(roots, gradients, leaves, self.shelf, check=check)

    def gradients(self) -> dict[int, Values]:
        """Return the gradients of what was received, by edge."""
        if not self.received:
            return {}
        return {
            edge: {name: gradient_of(leaf) for name, leaf in by_name.items() if leaf.requires_grad}
            for edge, by_name in self.received.items()
        }

    def _roots(self, arrived: Values) -> tuple[list[Tensor], list[Tensor]]:
        # Where the backward begins. An output whose gradient nobody sends, or that has no graph, is no root.
        if self._computed is None:
            assert self.forgetful is not None
            if not (arrived or self._ends):
                return [], []  # Nothing before trains.
            self._keep(self.forgetful.again(self._record, self._buffers))
        assert self._computed is not None
        outputs, _, loss = self._computed
        roots: list[Tensor] = []
        gradients: list[Tensor] = []
        for name, gradient in arrived.items():
            if outputs[name].requires_grad:
                roots.append(outputs[name])
                gradients.append(gradient)
        if loss is not None and loss.requires_grad:
            roots.append(loss)
            gradients.append(torch.full_like(loss, self.share * self.scale))
        return roots, gradients

    def _keep(self, computed: Computed) -> None:
        # The backward begins at the loss: the output that it was computed from may go.
        self._computed = computed if computed.loss is None else Computed(computed.outputs, None, computed.loss)

    def _record(self) -> Computed:
        if self.shelf is None:
            return self.compute()
        with self.shelf.keeping():
            return self.compute()
