"""Optimizers and learning-rate schedules of torch by name, with their arguments."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from graphpipe.errors import InvalidInput, nearest
from graphpipe.run.device.without_compiler import without_compiler
from graphpipe.user_frames import describe_error

_WITH_FUNCTIONS = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler")
"""Schedules whose arguments a configuration cannot hold."""


def optimizer_class(name: str) -> type[Optimizer]:
    """Return the class of `torch.optim` with this name, in any case: `adamw`, `SGD`, `Adafactor`.

    Raises:
        InvalidInput: there is none, or its step needs more than gradients.
    """
    classes = _classes(torch.optim, Optimizer)
    if name.lower() not in classes:
        raise InvalidInput(
            f"torch.optim has no '{name}'", where="optimizer.name", remedy=nearest(name.lower(), [*classes])
        )
    if name.lower() == "lbfgs":
        remedy = "Choose another one: a pipeline computes gradients once for each step."
        raise InvalidInput("LBFGS computes the loss several times in a step", where="optimizer.name", remedy=remedy)
    return classes[name.lower()]


def scheduler_class(name: str) -> type[LRScheduler]:
    """Return the class of `torch.optim.lr_scheduler` with this name, in any case: `StepLR`, `onecyclelr`.

    Raises:
        InvalidInput: there is none, or a configuration cannot hold what it needs.
    """
    classes = _classes(lr_scheduler, LRScheduler)
    if name.lower() not in classes:
        raise InvalidInput(
            f"torch.optim.lr_scheduler has no '{name}'",
            where="lr_schedule.name",
            remedy=nearest(name.lower(), ["constant", "cosine", *classes]),
        )
    found = classes[name.lower()]
    if found.__name__ in _WITH_FUNCTIONS:
        raise InvalidInput(
            f"{found.__name__} needs functions or other schedules",
            where="lr_schedule.name",
            remedy="Return it from the task: Task(scheduler=lambda optimizer, steps: ...).",
        )
    return found


def check_arguments(kind: type[Any], arguments: Mapping[str, Any], section: str) -> None:
    """Check that a class takes these arguments beside those that it is always given.

    Raises:
        InvalidInput: it does not.
    """
    known = [name for name in inspect.signature(kind).parameters if name not in ("params", "optimizer", "kwargs")]
    for name in arguments:
        if name not in known:
            what = f"{kind.__name__} takes no '{name}'"
            raise InvalidInput(what, where=f"{section}.arguments", remedy=nearest(name, known))


def check_builds(kind: type[Optimizer], arguments: Mapping[str, Any], where: str = "optimizer") -> None:
    """Check that an optimizer can be built with these arguments, which `where` names.

    Raises:
        InvalidInput: it refuses them.
    """
    try:
        with without_compiler():
            kind([nn.Parameter(torch.zeros(1, 1))], **arguments)
    except Exception as error:
        what = f"{kind.__name__} refuses its arguments: {describe_error(error)}"
        raise InvalidInput(what, where=where) from None


def check_of_groups(
    kind: type[Optimizer], arguments: Mapping[str, Any], options: Mapping[str, Any], patterns: str
) -> None:
    """Check that an optimizer keeps these options for each group of parameters.

    Args:
        kind: of the optimizer.
        arguments: of the optimizer.
        options: of a group.
        patterns: of the group, for errors.

    Raises:
        InvalidInput: it has one value for all groups, or refuses a value.
    """
    with without_compiler():
        known = [*kind([nn.Parameter(torch.zeros(1, 1))], **arguments).defaults]
    for name in options:
        if name not in known:
            what = f"{kind.__name__} has no '{name}' of its own for a group, and {patterns} sets it"
            raise InvalidInput(what, where="optimizer.groups", remedy=nearest(name, known))
    check_builds(kind, {**arguments, **options}, f"optimizer.groups, {patterns}")


def takes(kind: type[Any], name: str) -> bool:
    """Return whether a class takes an argument of this name."""
    return name in inspect.signature(kind).parameters


def as_argument(value: Any) -> Any:
    """Return a value of a configuration as torch expects it: lists become tuples, as those of betas."""
    return tuple(as_argument(each) for each in value) if isinstance(value, list) else value


def _classes(module: Any, base: type[Any]) -> dict[str, type[Any]]:
    found = {name: each for name, each in vars(module).items() if inspect.isclass(each) and issubclass(each, base)}
    return {name.lower(): each for name, each in found.items() if each is not base and not name.startswith("_")}
