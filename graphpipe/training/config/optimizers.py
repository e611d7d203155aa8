"""The optimizer and the learning-rate schedule of a configuration."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from graphpipe.run.weights.weight_update import ScheduledOptimizer, SchedulerFactory
from graphpipe.training.config.settings import OptimizerSettings, ScheduleSettings


def build_optimizer(settings: OptimizerSettings, parameters: Sequence[Tensor]) -> Optimizer:
    """Return the optimizer of these parameters."""
    lr, decay = settings.lr, settings.weight_decay
    if settings.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, weight_decay=decay)
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "radam": torch.optim.RAdam}
    return kinds[settings.name](parameters, lr=lr, weight_decay=decay)


def scheduler_factory(settings: ScheduleSettings, steps: int) -> SchedulerFactory:
    """Return a function that makes the learning-rate schedule of a training with `steps` steps."""

    def share(step: int) -> float:
        if step < settings.warmup_steps:
            return (step + 1) / (settings.warmup_steps + 1)
        if settings.name == "constant":
            return 1.0
        rest = max(1, steps - settings.warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - settings.warmup_steps) / rest)))

    return lambda optimizer: LambdaLR(optimizer, share)


def apply_settings(optimizers: Iterable[ScheduledOptimizer], settings: OptimizerSettings) -> None:
    """Give restored optimizers and schedules the options of a configuration, which a checkpoint has overwritten.

    The schedule's shape is that of the configuration anyway. Its learning rate continues at the present step.
    """
    for scheduled in optimizers:
        schedule = scheduled.scheduler
        assert isinstance(schedule, LambdaLR), "a configuration's schedule"
        schedule.base_lrs = [settings.lr] * len(schedule.base_lrs)
        for group, share in zip(scheduled.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["initial_lr"], group["weight_decay"] = settings.lr, settings.weight_decay
            group["lr"] = settings.lr * share(schedule.last_epoch)
            if "momentum" in group:
                group["momentum"] = settings.momentum
