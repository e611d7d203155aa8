"""The weight update of one rank: clip, step the optimizers, step the learning-rate schedules."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.zero1 import shard_optimizer_state

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
"""Builds an optimizer for trainable parameters of a rank. It is called once per group of parameters (see
`OptimizerGroup`), so never on a rank without trainable parameters."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]


_REMEDY = (
    "Step it yourself, between steps: keep the optimizers that your factory builds, and give it what it needs, such as "
    "the loss of an evaluation."
)


def check_step(built: object, remedy: str) -> None:
    """Check that an optimizer or a schedule steps without arguments.

    Raises:
        InvalidInput: it needs one: `LBFGS` a closure, `ReduceLROnPlateau` a metric.
    """
    kinds = inspect.Parameter
    for name, each in inspect.signature(type(built).step).parameters.items():  # pyright: ignore
        starred = each.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        if name != "self" and not starred and each.default is kinds.empty:
            what = f"{type(built).__name__}.step() needs '{name}', which a pipeline does not have"
            raise InvalidInput(what, where="optimizer", remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """Parameters that one optimizer updates."""

    parameters: list[nn.Parameter]
    process_group: dist.ProcessGroup | None = None
    """The ranks that shard the optimizer's state; None if it is not sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOptimizer:
    """An optimizer and its learning-rate schedule."""

    optimizer: Optimizer
    scheduler: LRScheduler | None

    @staticmethod
    def of(
        group: OptimizerGroup, optimizer: OptimizerFactory, scheduler: SchedulerFactory | None
    ) -> "ScheduledOptimizer":
        """Build optimizer and schedule for some parameters.

        Raises:
            InvalidInput: one of them needs an argument to step.
        """
        with without_compiler():
            built = optimizer(group.parameters)
            check_step(built, "The pipeline computes gradients once for each step. Choose another optimizer.")
            if group.process_group is not None:
                built = shard_optimizer_state(built, group.process_group)
            schedule = None if scheduler is None else scheduler(built)
            if schedule is not None:
                check_step(schedule, _REMEDY)
            return ScheduledOptimizer(optimizer=built, scheduler=schedule)

    def step(self) -> None:
        """Step the optimizer, then the schedule."""
        with without_compiler():
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()


@dataclass(slots=True, kw_only=True)
class WeightUpdate:
    """Updates the weights on one rank. Other ranks update the weights of their replicas in the same way."""

    groups: Sequence[OptimizerGroup]
    optimizers: list[ScheduledOptimizer]
    clip_norm: float | None

    @staticmethod
    def of(
        groups: Sequence[OptimizerGroup],
        optimizer: OptimizerFactory | None,
        scheduler: SchedulerFactory | None,
        clip_norm: float | None,
    ) -> "WeightUpdate":
        """Build optimizer and schedule for each group of a rank's trainable parameters."""
        optimizers: list[ScheduledOptimizer] = []
        if optimizer is not None:
            optimizers = [ScheduledOptimizer.of(group, optimizer, scheduler) for group in groups]
        return WeightUpdate(groups=groups, optimizers=optimizers, clip_norm=clip_norm)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that it updates."""
        return [parameter for group in self.groups for parameter in group.parameters]

    def clear(self) -> None:
        """Drop all gradients."""
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients by a factor."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, gradient_norm: float) -> None:
        """Update the weights, given the norm of the whole model's gradients."""
        if self.clip_norm is not None:
            self._clip(self.clip_norm, gradient_norm)
        for scheduled in self.optimizers:
            scheduled.step()

    def _clip(self, limit: float, gradient_norm: float) -> None:
        for group in self.groups:  # torch clips the shards of one group at a time
            norm = torch.tensor(gradient_norm, device=group.parameters[0].device)
            torch.nn.utils.clip_grads_with_norm_(group.parameters, limit, norm)
