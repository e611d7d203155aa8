"""The optimizer and the schedule of a training: those of the task, or else those of its configuration."""

from functools import partial
from typing import TypeVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput
from graphpipe.run.weights.weight_update import OptimizerFactory, SchedulerFactory
from graphpipe.training.config.optimizers import build_optimizer, scheduler_factory
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import Task

Kind = TypeVar("Kind")


def optimizer_factory(config: TrainConfig, task: Task) -> OptimizerFactory:
    """Return a function that builds the optimizer of some parameters.

    It raises `InvalidInput` if the task's own function returns something else.
    """
    if (build := task.optimizer) is None:
        return partial(build_optimizer, config.optimizer)
    return lambda parameters: _checked(build(parameters), Optimizer, "optimizer")


def schedule_factory(config: TrainConfig, task: Task, steps: int) -> SchedulerFactory:
    """Return a function that makes the learning-rate schedule of an optimizer.

    It raises `InvalidInput` if the task's own function returns something else.
    """
    if (build := task.scheduler) is None:
        return scheduler_factory(config.lr_schedule, steps)
    return lambda optimizer: _checked(build(optimizer, steps), LRScheduler, "scheduler")


def _checked(built: object, kind: type[Kind], field: str) -> Kind:
    if isinstance(built, kind):
        return built
    raise InvalidInput(f"returned {type(built).__name__}, must return a torch {kind.__name__}", where=field)
