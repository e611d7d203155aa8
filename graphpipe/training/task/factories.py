"""The optimizer and the schedule of a training: those of the task, or else those of its configuration."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.optimizer_state import other_state
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.run.weights.weight_update import NamedOptimizer, OptimizerFactory, SchedulerFactory, check_steps
from graphpipe.training.config.optimizer_settings import OptimizerSettings, ScheduleSettings
from graphpipe.training.config.optimizers import build_optimizer, scheduler_factory
from graphpipe.training.config.parameter_groups import ParameterGroups
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import Task
from graphpipe.user_frames import describe_error

_MANY = 1000
"""Steps of a schedule that is built only to look at it, where the training counts epochs."""

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


def check_factories(config: TrainConfig, task: Task, tell: Callable[[str], None]) -> None:
    """Check the optimizer and the schedule of a training, before anything that takes a while.

    They are built once of parameters without data, which are not kept.

    Args:
        config: of the training.
        task: its task.
        tell: called with a line for settings that are not used, because the task builds what they describe.

    Raises:
        InvalidInput: settings do not fit the task, the optimizer or the schedule needs an argument to step, or the
            schedule follows evaluations that the training does not make.
    """
    if config.optimizer.groups and task.optimizer is not None:
        what = "are given, and the task builds its optimizer itself"
        raise InvalidInput(what, where="optimizer.groups", remedy="Make the groups there, or leave them out.")
    groups = ParameterGroups.of(config.optimizer, task.model)
    if task.optimizer is None:
        groups.check(task.model)
    if unused := unused_settings(config, task):
        tell(f"not used, because the task builds its own: {', '.join(unused)}")
    check_followed(config, task, [_trial_schedule(config, task)])


def check_followed(config: TrainConfig, task: Task, schedules: Sequence[LRScheduler | None]) -> None:
    """Check that a training evaluates what its settings and its schedules follow.

    Raises:
        InvalidInput: it makes no evaluations, or a schedule waits for a minimum of what is best at its maximum.
    """
    plateaus = [each for each in schedules if isinstance(each, ReduceLROnPlateau)]
    of_schedule = "lr_schedule.name" if task.scheduler is None else "scheduler"
    by_name = task.scheduler is None and config.lr_schedule.follows_evaluations
    if not (config.evaluation.decides or by_name or plateaus):
        return
    where = "evaluation" if config.evaluation.decides else of_schedule
    if task.held_out is None:
        what = "follows evaluations, and the task has no held-out samples"
        raise InvalidInput(what, where=where, remedy="Give Task(held_out=...).")
    if config.train.eval_every is None:
        what = "follows the evaluations of the training, which makes none"
        raise InvalidInput(what, where=where, remedy="Set train.eval_every=STEPS.")
    for each in plateaus:
        if each.mode != config.evaluation.better:
            watched = f"evaluation.watch is '{config.evaluation.watch}' with mode '{config.evaluation.better}'"
            remedy = "Set evaluation.watch to what it follows, and evaluation.mode to its mode."
            raise InvalidInput(f"has mode '{each.mode}', and {watched}", where=of_schedule, remedy=remedy)


def unused_settings(config: TrainConfig, task: Task) -> list[str]:
    """Return the settings of optimizer and schedule with other values than by default that the task replaces."""
    sections: tuple[tuple[str, object, object, object], ...] = (
        ("optimizer", config.optimizer, OptimizerSettings(), task.optimizer),
        ("lr_schedule", config.lr_schedule, ScheduleSettings(), task.scheduler),
    )
    return [
        f"{section}.{name}"
        for section, settings, default, own in sections
        if own is not None
        for name in (each.name for each in fields(cast("Any", settings)))
        if getattr(settings, name) != getattr(default, name)
    ]


def _trial_schedule(config: TrainConfig, task: Task) -> LRScheduler | None:
    """Return the schedule of an optimizer of parameters without data.

    None if the optimizer cannot be built of them, as a factory that looks for its own parameters among them.

    Raises:
        InvalidInput: the optimizer or the schedule needs an argument to step, torch refuses arguments of the
            configuration, or a checkpoint of the run could not hold the optimizer's state.
    """
    trained = [each for each in task.model.parameters() if each.requires_grad]
    try:
        with without_compiler():
            copies = [nn.Parameter(torch.empty_like(each, device="meta")) for each in trained]
            optimizer = whole_optimizer(config, task)(copies)
    except InvalidInput:
        raise
    except Exception:
        return None
    check_steps(optimizer)
    if config.train.checkpoint_every is not None:
        other_state(optimizer)
    try:
        schedule = schedule_factory(config, task, config.train.steps or _MANY)(optimizer)
    except InvalidInput:
        raise
    except Exception as error:
        what = f"{config.lr_schedule.name} refuses its arguments: {describe_error(error)}"
        if task.scheduler is None and task.optimizer is None:
            raise InvalidInput(what, where="lr_schedule.arguments") from None
        return None
    check_steps(schedule)
    return schedule


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
