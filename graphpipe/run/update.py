"""The weight update of one rank: clip, step the optimizer, step the learning-rate schedule."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
"""Takes the trainable parameters a rank hosts; not called on a rank that has none."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]


@dataclass(slots=True, kw_only=True)
class Update:
    """What changes the weights that a rank hosts; replicas on other ranks change theirs alike."""

    parameters: list[nn.Parameter]
    optimizer: Optimizer | None
    scheduler: LRScheduler | None
    clip_norm: float | None

    @staticmethod
    def of(
        parameters: list[nn.Parameter],
        optimizer: OptimizerFactory | None,
        scheduler: SchedulerFactory | None,
        clip_norm: float | None,
    ) -> "Update":
        """Build optimizer and schedule for these parameters.

        Raises:
            InvalidInput: a clipping norm that is not positive.
        """
        if clip_norm is not None and not clip_norm > 0:
            raise InvalidInput(f"is {clip_norm}, must be positive", where="clip_norm", remedy="None clips nothing.")
        built = optimizer(parameters) if optimizer is not None and parameters else None
        return Update(
            parameters=parameters,
            optimizer=built,
            scheduler=scheduler(built) if scheduler is not None and built is not None else None,
            clip_norm=clip_norm,
        )

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, gradient_norm: float) -> None:
        """Change the weights, given the norm of the whole model's gradients."""
        if self.clip_norm is not None and self.parameters:
            norm = torch.tensor(gradient_norm, device=self.parameters[0].device)
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
