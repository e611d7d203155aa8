"""The weight update of one rank: clip, step the optimizers, average the weights, step the learning-rate schedules."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import get_ema_multi_avg_fn

from graphpipe.errors import InvalidInput
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.sharded_tensors import in_shards, own
from graphpipe.run.weights.zero1 import shard_optimizer_state

NamedParameter = tuple[str, nn.Parameter]


def _one_kind(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class NamedOptimizer:
    """Builds an optimizer of parameters with their names in the user's model; slices have names of their own.

    A parameter that two stages of a rank share may be there twice.
    """

    build: Callable[[Sequence[NamedParameter]], Optimizer]
    kind: Callable[[str], str] = _one_kind
    """The class of optimizers of a parameter, by its name. `build` gets parameters of one class at a time."""


OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer] | NamedOptimizer
"""Builds an optimizer for trainable parameters of a rank. It is called once per group of parameters (see
`OptimizerGroup`), so never on a rank without trainable parameters."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]


def kind_of(optimizer: OptimizerFactory | None, name: str) -> str:
    """Return the class of optimizers that a factory builds for the parameter of this name; empty if it has only one."""
    return optimizer.kind(name) if isinstance(optimizer, NamedOptimizer) else ""


def optimizer_of(optimizer: OptimizerFactory, named: Sequence[NamedParameter]) -> Optimizer:
    """Return the optimizer of parameters of one class."""
    if isinstance(optimizer, NamedOptimizer):
        return optimizer.build(named)
    return optimizer([parameter for _, parameter in named])


def optimizers_of(optimizer: OptimizerFactory, named: Iterable[NamedParameter]) -> list[Optimizer]:
    """Return the optimizers of parameters that may have several classes, one for each."""
    by_kind: dict[str, list[NamedParameter]] = {}
    for name, parameter in named:
        by_kind.setdefault(kind_of(optimizer, name), []).append((name, parameter))
    return [optimizer_of(optimizer, members) for members in by_kind.values()]


SLOT = "weight-average"
"""The name of an average among the tensors of an optimizer's state, in a checkpoint."""


_OWN_STEPS = (
    "Step it yourself, between steps: keep the optimizers that your factory builds, and give it what it needs, such as "
    "the loss of an evaluation."
)
_ONCE = "The pipeline computes gradients once for each step. Choose another optimizer."


def check_steps(built: Optimizer | LRScheduler) -> None:
    """Check that an optimizer or a schedule steps without arguments, or follows evaluations.

    Raises:
        InvalidInput: it needs one: `LBFGS` a closure.
    """
    if isinstance(built, ReduceLROnPlateau):
        return
    kinds = inspect.Parameter
    of_optimizer = isinstance(built, Optimizer)
    parameters = [*inspect.signature(type(built).step).parameters.items()][1:]  # but the object itself
    needed = [
        name
        for name, each in parameters
        if each.default is kinds.empty and each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if isinstance(built, LBFGS):  # also where a step of its own has a default
        needed = ["closure"]
    if needed:
        raise InvalidInput(
            f"{type(built).__name__}.step() needs '{needed[0]}', which a pipeline does not have",
            where="optimizer" if of_optimizer else "scheduler",
            remedy=_ONCE if of_optimizer else _OWN_STEPS,
        )


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has `train` and `eval`, as those of the package `schedulefree` do."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


def _begin_training(optimizer: Optimizer, *, sharded: bool) -> None:
    if not has_modes(optimizer):
        return
    if sharded:
        what = f"{type(optimizer).__name__} has other weights for evaluations, and a replica would have a shard's"
        raise InvalidInput(what, where="shard_optimizer", remedy="Leave it out, or choose another optimizer.")
    cast(Any, optimizer).train()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """Parameters that one optimizer updates."""

    named: list[NamedParameter] = field(default_factory=list[NamedParameter])
    """The parameters, with their names in the user's model."""
    process_group: dist.ProcessGroup | None = None
    """The ranks that shard the optimizer's state; None if it is not sharded."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters, in order."""
        return [parameter for _, parameter in self.named]


@dataclass(frozen=True, slots=True)
class WeightAverage:
    """Exponential averages of some parameters: `average += (1 - decay) (weight - average)`, beginning as the weights.

    Each rank averages what it updates, by torch's `swa_utils`: whole parameters, slices, or shards. Buffers are not
    averaged. Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging (1992).
    """

    parameters: Sequence[nn.Parameter]
    averages: Sequence[Tensor]
    """In the same order, sharded as the parameters are."""
    decay: float

    @staticmethod
    def of(parameters: Sequence[nn.Parameter], decay: float) -> "WeightAverage":
        """Return averages that begin as the present weights."""
        return WeightAverage(parameters, [each.detach().clone() for each in parameters], decay)

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into the averages."""
        add = get_ema_multi_avg_fn(self.decay)
        for averages, weights in self._by_kind():
            add(averages, weights, torch.tensor(0))

    @torch.no_grad()
    def load(self, values: Sequence[Tensor]) -> None:
        """Take averages from elsewhere: whole tensors, or shards as those here."""
        for average, value in zip(self.averages, values, strict=True):
            own(average).copy_(own(in_shards(value, average)))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages. A second call brings both back, bit for bit."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            weights = own(parameter).clone()
            own(parameter).copy_(own(average))
            own(average).copy_(weights)

    def _by_kind(self) -> list[tuple[list[Tensor], list[Tensor]]]:
        # Torch takes lists of one dtype and device.
        lists: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            averages, weights = lists.setdefault((parameter.dtype, parameter.device), ([], []))
            averages.append(own(average))
            weights.append(own(parameter.detach()))
        return [*lists.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOptimizer:
    """An optimizer and its learning-rate schedule."""

    optimizer: Optimizer
    scheduler: LRScheduler | None
    average: WeightAverage | None = None
    """Averages of what it updates; None if there are none."""

    @staticmethod
    def of(
        group: OptimizerGroup,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None,
        average_decay: float | None = None,
    ) -> "ScheduledOptimizer":
        """Build optimizer and schedule for some parameters.

        Raises:
            InvalidInput: one of them needs an argument to step, or the optimizer's state cannot be sharded.
        """
        with without_compiler():
            built = optimizer_of(optimizer, group.named)
            check_steps(built)
            _begin_training(built, sharded=group.process_group is not None)
            if group.process_group is not None:
                built = shard_optimizer_state(built, group.process_group)
            schedule = None if scheduler is None else scheduler(built)
            if schedule is not None:
                check_steps(schedule)
            average = None if average_decay is None else WeightAverage.of(group.parameters, average_decay)
            return ScheduledOptimizer(optimizer=built, scheduler=schedule, average=average)

    def step(self) -> None:
        """Step the optimizer, then the schedule, unless that follows evaluations."""
        with without_compiler():
            self.optimizer.step()
            if self.average is not None:
                self.average.update()
            if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
                self.scheduler.step()

    @property
    def has_modes(self) -> bool:
        """Whether the optimizer has other weights for evaluations, and takes them by `eval` and `train`."""
        return has_modes(self.optimizer)

    def set_mode(self, *, training: bool) -> None:
        """Call the optimizer's `train` or `eval`."""
        with without_compiler():
            getattr(self.optimizer, "train" if training else "eval")()

    @property
    def follows_evaluations(self) -> bool:
        """Whether the schedule goes on by what evaluations find, as ReduceLROnPlateau does."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def evaluated(self, value: float) -> None:
        """Step a schedule that follows evaluations, such as ReduceLROnPlateau, by a value, the same on every rank."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            with without_compiler():
                self.scheduler.step(value)


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
        average_decay: float | None = None,
    ) -> "WeightUpdate":
        """Build optimizer and schedule for each group of a rank's trainable parameters."""
        optimizers: list[ScheduledOptimizer] = []
        if optimizer is not None:
            optimizers = [ScheduledOptimizer.of(group, optimizer, scheduler, average_decay) for group in groups]
        return WeightUpdate(groups=groups, optimizers=optimizers, clip_norm=clip_norm)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters that it updates."""
        return [parameter for group in self.groups for parameter in group.parameters]

    def clear(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
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
            parameters = group.parameters
            norm = torch.tensor(gradient_norm, device=parameters[0].device)
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
