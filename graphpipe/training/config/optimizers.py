"""The optimizer and the learning-rate schedule of a configuration."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from graphpipe.run.weights.weight_update import SchedulerFactory
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
