"""The optimizer and the learning-rate schedule of a configuration."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler, SequentialLR

from graphpipe.run.weights.weight_update import ScheduledOptimizer, SchedulerFactory
from graphpipe.training.config.evaluation_settings import Mode
from graphpipe.training.config.optimizer_settings import OptimizerSettings, ScheduleSettings
from graphpipe.training.config.torch_names import as_argument, optimizer_class, scheduler_class, takes


def build_optimizer(settings: OptimizerSettings, parameters: Sequence[Tensor]) -> Optimizer:
    """Return an optimizer of parameters whose names are not known: of the first class that takes all of them.

    Raises:
        ValueError: none does.
    """
    *others, last = settings.names
    for name in others:
        with suppress(ValueError):  # Muon takes matrices alone
            return optimizer_class(name)(parameters, **settings.given_to(name))  # pyright: ignore[reportArgumentType]
    return optimizer_class(last)(parameters, **settings.given_to(last))  # pyright: ignore[reportArgumentType]


def scheduler_factory(settings: ScheduleSettings, steps: int, better: Mode = "min") -> SchedulerFactory:
    """Return a function that makes the learning-rate schedule of a training.

    Args:
        settings: of the schedule.
        steps: of the training.
        better: whether less or more is better of what ReduceLROnPlateau follows.
    """
    if settings.of_torch:
        return lambda optimizer: _of_torch(settings, optimizer, steps, better)
    return lambda optimizer: LambdaLR(optimizer, lambda step: _share(settings, step, steps))


def _share(settings: ScheduleSettings, step: int, steps: int) -> float:
    if step < settings.warmup_steps:
        return (step + 1) / (settings.warmup_steps + 1)
    if settings.name == "constant":
        return 1.0
    rest = max(1, steps - settings.warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - settings.warmup_steps) / rest)))


def _of_torch(settings: ScheduleSettings, optimizer: Optimizer, steps: int, better: Mode) -> LRScheduler:
    kind, warmup = scheduler_class(settings.name), settings.warmup_steps
    rest, rates = max(1, steps - warmup), [group["lr"] for group in optimizer.param_groups]
    lengths: dict[str, Any] = {"T_max": rest, "total_steps": rest, "max_lr": rates}
    if settings.follows_evaluations:
        lengths["mode"] = better
    missing = {name: value for name, value in lengths.items() if takes(kind, name) and name not in settings.arguments}
    if "epochs" in settings.arguments:  # OneCycleLR counts its steps itself.
        missing.pop("total_steps", None)
    arguments = missing | {name: as_argument(value) for name, value in settings.arguments.items()}
    if not warmup:
        return kind(optimizer, **arguments)
    begin = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [begin, kind(optimizer, **arguments)], milestones=[warmup])


def apply_settings(
    optimizers: Iterable[ScheduledOptimizer],
    options_of: Callable[[Tensor], Mapping[str, Any]],
) -> None:
    """Give restored optimizers and schedules the options of a configuration, which a checkpoint has overwritten.

    The shape of `constant` and `cosine` is that of the configuration anyway. Their learning rate continues at the
    present step. Schedules of torch keep the learning rates, momenta and betas that they have set.

    Args:
        optimizers: with their schedules.
        options_of: returns the options of a parameter. Those of a group are equal.
    """
    for scheduled in optimizers:
        groups = scheduled.optimizer.param_groups
        for number, group in enumerate(groups):
            options = scheduled.optimizer.defaults | dict(options_of(group["params"][0]))
            if isinstance(scheduled.scheduler, LambdaLR):
                group |= {name: value for name, value in options.items() if name in group}
                group["initial_lr"] = options["lr"]
                scheduled.scheduler.base_lrs[number] = options["lr"]
                group["lr"] = options["lr"] * scheduled.scheduler.lr_lambdas[number](scheduled.scheduler.last_epoch)
            else:
                group["weight_decay"] = options.get("weight_decay", group.get("weight_decay"))
