"""The optimizer and the schedule of a training: those of the task, or else those of its configuration."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput
from graphpipe.run.weights.weight_update import NamedOptimizer, OptimizerFactory, SchedulerFactory
from graphpipe.training.config.optimizers import build_optimizer, scheduler_factory
from graphpipe.training.config.parameter_groups import ParameterGroups
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import Task

Kind = TypeVar("Kind")


def optimizer_factory(config: TrainConfig, task: Task) -> OptimizerFactory:
    """Return a function that builds the optimizer of some parameters.

    It raises `InvalidInput` if the task's own function returns something else.

    Raises:
        InvalidInput: a pattern of `optimizer.groups` matches no trained parameter.
    """
    if config.optimizer.groups and task.optimizer is None:
        groups = ParameterGroups.of(config.optimizer, task.model)
        return NamedOptimizer(groups.build, groups.kind)
    return whole_optimizer(config, task)


def whole_optimizer(config: TrainConfig, task: Task) -> Callable[[list[nn.Parameter]], Optimizer]:
    """Return the same without parameter groups, for parameters whose names are not known."""
    if (build := task.optimizer) is None:
        return partial(build_optimizer, config.optimizer)
    return lambda parameters: _checked(build(parameters), Optimizer, "optimizer")


def check_factories(config: TrainConfig, task: Task) -> None:
    """Check that the settings of optimizer and schedule fit the task, before anything that takes a while.

    Raises:
        InvalidInput: they do not.
    """
    if config.optimizer.groups and task.optimizer is not None:
        what = "are given, and the task builds its optimizer itself"
        raise InvalidInput(what, where="optimizer.groups", remedy="Make the groups there, or leave them out.")
    groups = ParameterGroups.of(config.optimizer, task.model)
    if task.optimizer is None:
        groups.check(task.model)
    if task.held_out is None and (config.evaluation.decides or config.lr_schedule.follows_evaluations):
        setting = "evaluation" if config.evaluation.decides else "lr_schedule.name"
        what = "follows evaluations, and the task has no held-out samples"
        raise InvalidInput(what, where=setting, remedy="Give Task(held_out=...).")


def schedule_factory(config: TrainConfig, task: Task, steps: int) -> SchedulerFactory:
    """Return a function that makes the learning-rate schedule of an optimizer.

    It raises `InvalidInput` if the task's own function returns something else.
    """
    if (build := task.scheduler) is None:
        return scheduler_factory(config.lr_schedule, steps, config.evaluation.better)
    return lambda optimizer: _checked(build(optimizer, steps), LRScheduler, "scheduler")


def _checked(built: object, kind: type[Kind], field: str) -> Kind:
    if isinstance(built, kind):
        return built
    raise InvalidInput(f"returned {type(built).__name__}, must return a torch {kind.__name__}", where=field)
