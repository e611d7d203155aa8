"""The model, loss and samples that `graphpipe check` trains, from a MODEL of the command line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from graphpipe.graph import Graph
from graphpipe.model.inputs import Inputs, name_inputs, read_layout, with_containers
from graphpipe.run.stage.loss import LossFunction
from graphpipe.run.stage.tensor_tree import leaves
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.task import Batch, Task
from graphpipe.training.task.user_function import call, model_of

_FARTHER = 0.1
"""By how much the numbers of a repeated sample grow with every repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """A model, its loss, and its samples."""

    module: nn.Module
    example_inputs: Inputs
    loss_fn: LossFunction
    samples: Callable[[int], Batch]
    """Returns inputs and targets of so many samples."""
    graph: Graph | None = None
    """The graph that the user captured from the module with options. None: the default options."""
    note: str = ""
    """What stands for a loss of the user's, as a sentence; empty if it is the user's own."""


def find_checked_model(word: str, folder: str | Path = ".") -> CheckedModel:
    """Return the model of a word: a zoo name, or a function of the user's that returns a model or a Task.

    Raises:
        InvalidInput: as `find_model`.
    """
    if ":" not in word or word.endswith(":small"):
        from graphpipe.model.zoo.registry import zoo_model

        found = zoo_model(word)
        return CheckedModel(
            module=found.module,
            example_inputs=found.example_inputs,
            loss_fn=found.loss_fn,
            samples=lambda count: found.batch(torch.Generator().manual_seed(0), count),
        )
    given = call(word, folder)
    if isinstance(given, Task):
        return CheckedModel(
            module=given.model,
            example_inputs=given.example_inputs,
            loss_fn=given.loss_fn,
            samples=lambda count: first_samples(given, count, count, 0),
            graph=given.graph,
        )
    model = model_of(given, word)
    layout = read_layout(model.module, model.example_inputs)
    named = name_inputs(layout, model.example_inputs)
    return CheckedModel(
        module=model.module,
        example_inputs=model.example_inputs,
        loss_fn=weighted_squares,
        samples=lambda count: (
            with_containers(layout, {name: more_samples(each, count) for name, each in named.items()}),
            None,
        ),
        graph=model.graph,
        note="the loss is the mean of the squared outputs, because the function returns no loss; return a Task to "
        "check your own",
    )


def weighted_squares(output: Any, targets: object) -> Tensor:
    """Return a loss for any model: the mean square of every output, summed.

    The elements of a sample have unequal weights. Without them, the gradients of an output that the model has normed
    would vanish. All samples have the same weight.
    """
    del targets
    found = [each for each in leaves(output) if each.is_floating_point()]
    return torch.stack([(each.square() * _weights(each)).mean() for each in found]).sum()


def _weights(output: Tensor) -> Tensor:
    return torch.linspace(1, 2, output.shape[-1] if output.dim() > 1 else 1).to(output)


def more_samples(examples: Tensor, count: int) -> Tensor:
    """Return `count` samples made from some: where there are too few, they are repeated with other values."""
    parts: list[Tensor] = []
    for repetition in range(-(-count // len(examples))):
        if examples.is_floating_point():
            parts.append(examples * (1 + _FARTHER * repetition))
        elif examples.dim() > 1:
            parts.append(examples.roll(repetition, dims=-1))
        else:
            parts.append(examples.roll(repetition))
    return torch.cat(parts)[:count]
