"""The weight update of one rank: clip, step the optimizers, step the learning-rate schedules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput
from graphpipe.run.weights.zero1 import share_out

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
"""Takes the trainable parameters a rank hosts; not called on a rank that has none. Where optimizer state is sharded it
is called once per set of ranks that share it, each time for some of them."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Parameters that one optimizer changes."""

    parameters: list[nn.Parameter]
    group: dist.ProcessGroup | None = None
    """Given, its ranks share out the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """An optimizer and its learning-rate schedule."""

    optimizer: Optimizer
    scheduler: LRScheduler | None

    @staticmethod
    def of(portion: Portion, optimizer: OptimizerFactory, scheduler: SchedulerFactory | None) -> "Stepper":
        """Build optimizer and schedule for some parameters."""
        built = optimizer(portion.parameters)
        if portion.group is not None:
            built = share_out(built, portion.group)
        return Stepper(optimizer=built, scheduler=None if scheduler is None else scheduler(built))

    def step(self) -> None:
        """Step the optimizer, then the schedule."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


@dataclass(slots=True, kw_only=True)
class Update:
    """What changes the weights that a rank hosts; replicas on other ranks change theirs alike."""

    portions: Sequence[Portion]
    steppers: list[Stepper]
    clip_norm: float | None

    @staticmethod
    def of(
        portions: Sequence[Portion],
        optimizer: OptimizerFactory | None,
        scheduler: SchedulerFactory | None,
        clip_norm: float | None,
    ) -> "Update":
        """Build optimizer and schedule for each portion of a rank's trainable parameters.

        Raises:
            InvalidInput: a clipping norm that is not positive.
        """
        if clip_norm is not None and not clip_norm > 0:
            raise InvalidInput(f"is {clip_norm}, must be positive", where="clip_norm", remedy="None clips nothing.")
        return Update(
            portions=portions,
            steppers=[] if optimizer is None else [Stepper.of(each, optimizer, scheduler) for each in portions],
            clip_norm=clip_norm,
        )

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that it changes."""
        return [parameter for portion in self.portions for parameter in portion.parameters]

    def clear(self) -> None:
        """Drop all gradients."""
        for portion in self.portions:
            for parameter in portion.parameters:
                parameter.grad = None

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients by a factor."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, gradient_norm: float) -> None:
        """Change the weights, given the norm of the whole model's gradients."""
        if self.clip_norm is not None:
            self._clip(self.clip_norm, gradient_norm)
        for stepper in self.steppers:
            stepper.step()

    def _clip(self, limit: float, gradient_norm: float) -> None:
        for portion in self.portions:  # torch takes the shards of one group at a time
            norm = torch.tensor(gradient_norm, device=portion.parameters[0].device)
            torch.nn.utils.clip_grads_with_norm_(portion.parameters, limit, norm)
