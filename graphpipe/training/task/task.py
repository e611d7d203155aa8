"""The task: the model, data and loss that the user's own function gives to `graphpipe train`."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from graphpipe.errors import InvalidInput
from graphpipe.graph import Graph
from graphpipe.model.inputs import Inputs, input_names, name_inputs
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.mini_batch import check_rows
from graphpipe.training.task.user_function import call

Batch = tuple[Inputs, Any]
"""Inputs and targets of some samples, as `Pipeline.step` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The model, its data and loss, and how to evaluate it."""

    module: nn.Module
    """The model with its initial weights, on the CPU. It is made after `torch.manual_seed`, so that all ranks make the
    same weights. Each rank moves its stages to its own device."""
    example_inputs: Inputs
    """Real values of a few samples, for capturing and profiling."""
    loss_fn: LossFunction
    epoch: Callable[[int, int, int], Iterable[Batch]]
    """(epoch from 0, batch size, seed) -> the mini-batches of the epoch, all of this size and equal on every rank."""
    held_out: Batch | None = None
    """Samples for evaluation at the end. None: the model is not evaluated."""
    accuracy: Callable[[Any, Any], float] | None = None
    """(outputs, targets) of the held-out samples -> share of correct outputs. None: their loss is reported instead."""
    graph: Graph | None = None
    """The module's graph, of `capture` with options (such as `forms` or `whole_batch`) or of `from_transformers`. None:
    the module is captured with the default options."""

    def __post_init__(self) -> None:
        """Check the fields before anything runs.

        Raises:
            InvalidInput: a field has another type, or a function takes other arguments.
        """
        module = cast("object", self.module)
        if not isinstance(module, nn.Module):
            name = module.__name__ if isinstance(module, type) else ""
            what = f"the class {name}" if name else f"a {type(module).__name__}"
            remedy = f"Call it: {name}(...)." if name else ""
            raise InvalidInput(f"module is {what}, must be an nn.Module", where="Task", remedy=remedy)
        if not isinstance(cast("object", self.graph), Graph | None):
            raise InvalidInput(f"graph is a {type(self.graph).__name__}, must be a graph of `capture`", where="Task")
        _check_function("loss_fn", self.loss_fn, "outputs", "targets")
        _check_function("epoch", self.epoch, "epoch", "batch_size", "seed")
        if self.accuracy is not None:
            _check_function("accuracy", self.accuracy, "outputs", "targets")
        if self.held_out is not None:
            as_batch(self.held_out, "held_out")


def as_batch(found: object, where: str) -> Batch:
    """Return a mini-batch as a pair of inputs and targets.

    Raises:
        InvalidInput: it is not a pair.
    """
    if isinstance(found, tuple | list) and len(cast("Sequence[object]", found)) == 2:
        inputs, targets = cast("Sequence[Any]", found)
        return inputs, targets
    size = f" of {len(cast('Sequence[object]', found))}" if isinstance(found, tuple | list | Mapping) else ""
    raise InvalidInput(
        f"found a {type(found).__name__}{size}, must be a pair (inputs, targets)",
        where=where,
        remedy="Put several inputs into one dict by name, or one tuple: ({'image': image, 'text': text}, labels).",
    )


def check_first(found: object, task: Task, batch_size: int) -> None:
    """Check the first mini-batch of an epoch against the example inputs.

    Raises:
        InvalidInput: it is not a pair, has another number of samples, or other inputs than the examples.
    """
    inputs, targets = as_batch(found, "a mini-batch of the epoch")
    try:
        names = input_names(task.module, task.example_inputs)
        size = check_rows(name_inputs(names, inputs), targets)
    except InvalidInput as error:
        raise InvalidInput(error.what, where="the first mini-batch of the epoch", remedy=error.remedy) from None
    if size != batch_size:
        raise InvalidInput(
            f"yields mini-batches of {size} samples, train.batch_size is {batch_size}",
            where="epoch",
            remedy="Use the batch_size argument of epoch(epoch, batch_size, seed), or change train.batch_size.",
        )


def _check_function(field: str, function: object, *arguments: str) -> None:
    what = f"must be a function of ({', '.join(arguments)})"
    if not callable(function):
        raise InvalidInput(f"{field} is a {type(function).__name__}, {what}", where="Task")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise InvalidInput(f"{field} {what}: {error}", where="Task") from None
    except ValueError:  # The arguments of a function that is not written in Python are unknown.
        return


def load_task(word: str, folder: str | Path, seed: int) -> Task:
    """Call the user's function after seeding torch, and return its task.

    Args:
        word: `package.module:function` or `file.py:function`.
        folder: of the file or module.
        seed: set before the function is called, for the initial weights.

    Raises:
        InvalidInput: there is no such function, or it does not return a Task.
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
