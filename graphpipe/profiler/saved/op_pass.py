"""One forward of an operator and its backward, task by task, so that the memory of each can be watched."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.halves.split_backward import WeightHalf, input_half
from graphpipe.model.saved_tensors import handle_saved_tensors
from graphpipe.profiler.operators.op_runs import OpRun


@final
@dataclass(slots=True)
class OpPass:
    """The tasks of one pass. The backward follows the forward whole, or in two halves."""

    run: OpRun
    leaves: list[Tensor]
    """The inputs that get a gradient."""
    given: dict[str, Tensor]
    """All inputs by name."""
    saved: ReleasableTensors
    half: WeightHalf = field(default_factory=WeightHalf)
    """What waits for the second half."""
    _roots: list[Tensor] = field(default_factory=list[Tensor])
    _gradients: list[Tensor] = field(default_factory=list[Tensor])

    @staticmethod
    def of(run: OpRun, samples: int, *, releases: bool = False) -> "OpPass":
        """Return a pass with this number of samples.

        Args:
            run: of the operator.
            samples: their number.
            releases: whether the first half may release tensors (see `may_release`).
        """
        leaves, given = run.enter(samples)
        return OpPass(run, leaves, given, ReleasableTensors(lambda count: releases))

    def forward(self) -> Sequence[Tensor]:
        """Run the forward, and return its outputs."""
        with handle_saved_tensors(self.saved):
            outputs = self.run.call(self.given)
        self._roots = [output for output in outputs if output.requires_grad]
        return outputs

    def seed(self) -> None:
        """Make the gradients that arrive."""
        self._gradients = [torch.ones_like(root) for root in self._roots]

    def backward(self) -> None:
        """Run the backward whole."""
        roots, gradients = self._take()
        if roots:
            torch.autograd.backward(roots, gradients)

    def input_half(self) -> None:
        """Run the first half. The gradients of the inputs are gone at its end, as if they had been sent."""
        roots, gradients = self._take()
        if roots:
            self.half = input_half(roots, gradients, self.leaves, self.saved, check=False)
        for leaf in self.leaves:
            leaf.grad = None

    def weight_half(self) -> None:
        """Run the second half."""
        self.half.run()

    def _take(self) -> tuple[list[Tensor], list[Tensor]]:
        roots, gradients = self._roots, self._gradients
        self._roots, self._gradients = [], []
        return roots, gradients


def may_release(run: OpRun, samples: int) -> bool:
    """Return whether the first half of an operator's backward may release tensors, by a trial that keeps them."""
    trial = OpPass.of(run, samples)
    with with_gradients(run.parameters):
        for task in (trial.forward, trial.seed, trial.input_half, trial.weight_half):
            task()
    return not trial.saved.mistaken


@contextmanager
def with_gradients(parameters: Sequence[Tensor]) -> Generator[None]:
    """Let parameters have gradients in the block. In a step, each micro-batch but the first adds to those there are."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
