"""The argument of verbs that run a configuration's task or a model of their own."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphpipe.errors import InvalidInput
from graphpipe.waiting import waiting

if TYPE_CHECKING:
    from graphpipe.training.config.settings import TrainConfig
    from graphpipe.training.task.task import Task


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add a model or a configuration, and changes of the configuration's settings."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a configuration of `graphpipe train` (.toml), a zoo name, or package.module:function or file.py:function "
        "returning a Task or (module, example inputs)",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changed settings of a configuration")


def names_configuration(args: argparse.Namespace) -> bool:
    """Return whether the model is a configuration."""
    return str(args.model).endswith(".toml")


def check_no_overrides(args: argparse.Namespace, where: str, remedy: str) -> None:
    """Check that settings of a configuration are only changed if there is one.

    Raises:
        InvalidInput: they are, and there is none.
    """
    if args.overrides:
        what = f"'{args.overrides[0]}' changes a configuration, and MODEL is none"
        raise InvalidInput(what, where=where, remedy=remedy)


def configured_task(
    args: argparse.Namespace, *, excluded: Sequence[str], what: str, remedy: str
) -> "tuple[TrainConfig, Task]":
    """Return the configuration that is named, and its task with data that fit.

    Args:
        args: of the command line.
        excluded: arguments that configurations have settings for.
        what: a configuration has of its own.
        remedy: for a user who gives one of these.

    Raises:
        InvalidInput: an excluded argument is given, or the configuration, its task or its data are wrong.
    """
    from graphpipe.training.config.from_toml import read_config
    from graphpipe.training.task.count_steps import check_data, count_steps
    from graphpipe.training.task.task import load_task

    for name in excluded:
        if getattr(args, name):
            raise InvalidInput(f"a configuration has {what}", where=f"--{name.replace('_', '-')}", remedy=remedy)
    config = read_config(args.model, [*args.overrides, *["plan.cache=false"] * (not args.cache)])
    with waiting("loading the task"):
        task = load_task(config.task, config.folder, config.train.seed)
    count_steps(config, task)
    check_data(config, task)
    return config, task
