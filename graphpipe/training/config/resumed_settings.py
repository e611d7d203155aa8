"""Settings of a resumed run that its checkpoint excludes: what the present state follows from, and what it lacks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.training.config.optimizer_settings import OptimizerSettings, ScheduleSettings
from graphpipe.training.config.torch_names import optimizer_class, scheduler_class, takes

Changed = Mapping[str, tuple[Any, Any]]
"""The values of changed settings, then and now, by dotted key."""
_OTHERWISE = "or start from the exported weights."
_APPLIED = ("optimizer.weight_decay",)
"""Settings of the optimizer that no schedule changes."""


def check_optimizer(then: OptimizerSettings, now: OptimizerSettings, changed: Changed) -> None:
    """Check that an optimizer can go on with other settings.

    Raises:
        InvalidInput: it is another one, or needs state that the checkpoint does not have.
    """
    if "optimizer.name" in changed:
        raise InvalidInput(
            f"the run was trained with {then.name}, and its checkpoint has no state of {now.name}",
            where="optimizer.name",
            remedy=f"Choose {then.name}, {_OTHERWISE}",
        )
    if _named(then) != _named(now):
        what = "give parameters other classes than the run had, and its checkpoint has no state of these"
        raise InvalidInput(what, where="optimizer.groups", remedy=f"Name the same classes, {_OTHERWISE}")
    keys = [key for key in changed if key.startswith("optimizer.") and key not in ("optimizer.lr", *_APPLIED)]
    if keys and not _goes_on(then, now):
        was, now_is = changed[keys[0]]
        raise InvalidInput(
            f"was {_shown(was)}, is {_shown(now_is)}, and the checkpoint has no state for it",
            where=keys[0],
            remedy=f"Choose {_shown(was)}, {_OTHERWISE}",
        )


def check_schedule(schedule: ScheduleSettings, changed: Changed) -> None:
    """Check that a learning-rate schedule can go on with other settings.

    Rates of torch's schedules follow from their states, which hold for one schedule, optimizer and length.

    Raises:
        InvalidInput: it cannot.
    """
    names = changed.get("lr_schedule.name", (schedule.name,) * 2)
    if all(name in ("constant", "cosine") for name in names):
        return
    for key, (was, now) in changed.items():
        of_optimizer = key.startswith("optimizer.") and key not in _APPLIED
        of_length = key in ("train.steps", "train.epochs") and _has_length(schedule)
        of_figure = key in ("evaluation.watch", "evaluation.mode") and schedule.follows_evaluations
        if of_optimizer or of_length or of_figure or key.startswith("lr_schedule."):
            raise InvalidInput(
                f"was {_shown(was)}, is {_shown(now)}, and the rate of {names[0]} follows from the state in the "
                "checkpoint",
                where=key,
                remedy=f"Choose {_shown(was)}, {_OTHERWISE}",
            )


def check_own(changed: Changed, sections: Mapping[str, bool]) -> None:
    """Check that no setting was changed of what the task builds itself.

    Args:
        changed: settings.
        sections: whether the task builds what they describe, by section.

    Raises:
        InvalidInput: one was, and would not be applied.
    """
    for key in changed:
        section = key.partition(".")[0]
        if sections.get(section, False):
            raise InvalidInput(
                f"was changed, and the task builds its own {section}", where=key, remedy="Change it in the task."
            )


def _named(settings: OptimizerSettings) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
    # The patterns of each group that has a class of its own, and the class.
    groups = [group for group in settings.groups if group.name is not None]
    return [(group.match, group.modules, (group.name or "").lower()) for group in groups]


def _goes_on(then: OptimizerSettings, now: OptimizerSettings) -> bool:
    # Whether a step of the one leaves the state that a step of the other reads.
    parameter = nn.Parameter(torch.zeros(1, 1))
    parameter.grad = torch.ones_like(parameter)
    try:
        with without_compiler():
            built = optimizer_class(then.name)([parameter], **then.given_to(then.name))
            built.step()
            later = optimizer_class(now.name)([nn.Parameter(torch.zeros(1, 1))], **now.given_to(now.name)).defaults
            for group in built.param_groups:
                group.update({name: value for name, value in later.items() if name in group})
            built.step()
    except (KeyError, AttributeError, TypeError, IndexError):
        return False
    return True


def _has_length(schedule: ScheduleSettings) -> bool:
    # Whether it takes the length of the training, because its arguments say no other.
    if not schedule.of_torch:
        return False
    kind = scheduler_class(schedule.name)
    return any(takes(kind, name) and name not in schedule.arguments for name in ("T_max", "total_steps"))


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
