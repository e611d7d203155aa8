"""A micro-batch in flight: its forward, its backward, and the state kept in between."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import WeightHalf, input_half
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.run.stage.edge_values import gradient_of
from graphpipe.run.stage.offload import OffloadedTensors
from graphpipe.run.stage.receive_buffers import LastUse, NamedTensors
from graphpipe.run.stage.recompute import Recomputation

BackwardContext = Callable[[list[Tensor]], AbstractContextManager[None]]


class Computed(NamedTuple):
    """The results of a stage's forward of a micro-batch."""

    outputs: NamedTensors
    result: Any
    """The model's output; None except at the output stage."""
    loss: Tensor | None
    """The mean loss over the samples of the micro-batch on this replica."""


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch of one stage replica, from its forward to the end of its backward."""

    received: dict[int, NamedTensors]
    """Received values, by edge. The values that need a gradient are leaves."""
    share: float
    """Share of the mini-batch's samples. Losses of replicas and micro-batches are summed with this weight."""
    scale: float
    """The factor by which gradients are multiplied."""
    compute: Callable[[], Computed]
    recomputation: Recomputation | None
    """Runs the forward again in the backward; None if the forward records a graph."""
    saved_tensors: ReleasableTensors | None
    """The saved tensors of a backward that is split into two halves; None if it is not split."""
    offloaded: OffloadedTensors | None = None
    """What the stage offloads; None if it offloads nothing. Its backward is not split."""
    probe: Callable[[list[Tensor], NamedTensors], None] | None = None
    """Takes the roots of the first backward, and the received values that need a gradient."""
    _computed: Computed | None = None
    _has_loss: bool = False
    """Whether the loss was computed here, so that gradients begin here."""
    _buffers: NamedTensors = field(default_factory=NamedTensors)

    def forward(self) -> Computed:
        """Run the forward, and keep what the backward needs."""
        if self.recomputation is None:
            computed = self._record()
            self._keep(computed)
            return computed
        with torch.no_grad():
            computed, self._buffers = self.recomputation.compute(self.compute)
        self._has_loss = computed.loss is not None
        return computed

    def backward(self, arrived: NamedTensors, context: BackwardContext | None = None) -> None:
        """Add to the gradients of the parameters and of the received values.

        Args:
            arrived: gradients of the outputs, by name.
            context: takes the tensors where the backward begins, and returns a context for it.
        """
        roots, gradients = self._roots(arrived)
        if self.probe is not None and roots:
            leaves = {name: each for values in self.received.values() for name, each in values.items()}
            self.probe(roots, {name: each for name, each in leaves.items() if each.requires_grad})
        if roots and context is not None:
            with context(roots):
                torch.autograd.backward(roots, gradients)
        elif roots:
            torch.autograd.backward(roots, gradients)

    def input_half(self, arrived: NamedTensors, *, check: bool) -> WeightHalf:
        """Compute the gradients of the received values, and return the half of the backward for the parameters."""
        assert self.saved_tensors is not None
        roots, gradients = self._roots(arrived)
        leaves = [leaf for by_name in self.received.values() for leaf in by_name.values() if leaf.requires_grad]
        return input_half(roots, gradients, leaves, self.saved_tensors, check=check)

    def gradients(self) -> dict[int, NamedTensors]:
        """Return the gradients of the received values, by edge."""
        if not self.received:
            return {}
        return {
            edge: {name: gradient_of(leaf) for name, leaf in by_name.items() if leaf.requires_grad}
            for edge, by_name in self.received.items()
        }

    def last_uses(self) -> list[LastUse]:
        """Return the received values, which nothing reads after the backward, without their gradients."""
        return [
            LastUse(edge, "forward", [value.detach() for value in values.values()])
            for edge, values in self.received.items()
        ]

    def _roots(self, arrived: NamedTensors) -> tuple[list[Tensor], list[Tensor]]:
        # Tensors where the backward begins, and their gradients: the loss, and outputs with a graph and a gradient.
        if self._computed is None:
            assert self.recomputation is not None
            if not (arrived or self._has_loss):
                return [], []  # This stage does not get any gradient.
            self._keep(self.recomputation.compute_again(self._record, self._buffers))
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
        # If there is a loss, the backward begins there, and the model's output is not needed.
        self._computed = computed if computed.loss is None else Computed(computed.outputs, None, computed.loss)

    def _record(self) -> Computed:
        handler = self.offloaded or self.saved_tensors
        if handler is None:
            return self.compute()
        with handle_saved_tensors(handler):
            return self.compute()

    def offload(self) -> None:
        """Start to copy what the stage offloads to the memory of the node, or to a neighbour."""
        assert self.offloaded is not None, "a stage that offloads handles its saved tensors"
        assert self._computed is not None, "what was not computed cannot be copied"
        received = [value for by_name in self.received.values() for value in by_name.values()]
        self.offloaded.offload([*self._computed.outputs.values(), *received])

    def fetch(self) -> None:
        """Start to copy it back."""
        assert self.offloaded is not None, "a stage that offloads handles its saved tensors"
        self.offloaded.fetch()
