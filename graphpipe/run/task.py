"""The task: everything that `graphpipe train` needs to know beside the plan, given by the user's own function."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs import Inputs
from graphpipe.run.losses import LossFunction
from graphpipe.run.user_code import call

Batch = tuple[Inputs, Any]
"""Inputs and targets of some samples, as `Pipeline.step` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to train, on what, and how to tell whether it worked."""

    module: nn.Module
    """With its initial weights: made after `torch.manual_seed`, so that every rank makes the same."""
    example_inputs: Inputs
    """Real values of a few samples, to capture and to profile with."""
    loss_fn: LossFunction
    epoch: Callable[[int, int, int], Iterable[Batch]]
    """(epoch from 0, batch size, seed) -> the mini-batches of the epoch, all of this size, the same on every rank."""
    held_out: Batch | None = None
    """What is evaluated at the end; None evaluates nothing."""
    accuracy: Callable[[Any, Any], float] | None = None
    """(outputs, targets) of the held-out samples -> share of right answers; None reports their loss instead."""


def load_task(word: str, folder: str | Path, seed: int) -> Task:
    """Return the task that the user's function builds, with random numbers from `seed`.

    Args:
        word: `package.module:function` or `file.py:function`.
        folder: where files and modules are looked for.
        seed: of the initial weights.

    Raises:
        InvalidInput: no such function, or it does not return a Task.
    """
    torch.manual_seed(seed)
    task = call(word, folder)
    if not isinstance(task, Task):
        raise InvalidInput(
            f"returned {type(task).__name__}, must return a Task",
            where=f"'{word}'",
            remedy="Return graphpipe.Task(module=..., example_inputs=..., loss_fn=..., epoch=...).",
        )
    return task
