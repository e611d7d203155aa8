"""How many optimizer steps a training has."""

from collections.abc import Iterable
from operator import length_hint
from typing import cast

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs import Inputs, describe, name_inputs, read_layout
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.first_samples import first_samples
from graphpipe.training.task.sample_order import epoch_order
from graphpipe.training.task.sample_source import SampleSource
from graphpipe.training.task.task import Task, check_first

_FIRST = 2
"""Samples of a data set that are read to check it: one would hide samples of other shapes."""


def count_steps(config: TrainConfig, task: Task) -> int:
    """Return the optimizer steps of a training, and check the first mini-batch of an epoch.

    Raises:
        InvalidInput: an epoch has no mini-batch, or its first one has other inputs or another size than the task.
    """
    steps, epochs = config.train.steps, config.train.epochs
    in_epoch = (
        _of_mini_batches(config, task) if (source := task.source()) is None else _of_dataset(config, task, source)
    )
    if epochs is None:
        assert steps is not None
        return steps
    return epochs * in_epoch if steps is None else min(steps, epochs * in_epoch)


def left_out(config: TrainConfig, task: Task) -> str:
    """Return a sentence about the samples of a data set that each epoch leaves out; empty if there are none.

    Those of a training that ends within its first epoch do not count.
    """
    size, steps = config.train.batch_size, config.train.steps
    if (source := task.source()) is None:
        return ""
    count = _samples_of(config, task, source)
    left = count % size
    reached = steps is None or steps > count // size
    if not (left and reached):
        return ""
    return f"each epoch leaves out {left} of {count} samples, which are no mini-batch of {size}"


def check_data(config: TrainConfig, task: Task) -> None:
    """Check the first samples of a task's data sets, which the ranks do not read for that.

    Raises:
        InvalidInput: a sample cannot be read, samples cannot be joined, or they are not what the model takes.
    """
    if task.source() is not None:
        size = min(_FIRST, config.train.batch_size)
        first = first_samples(task, size, config.train.batch_size, config.train.seed)
        check_first(first, task, size)
        _check_shapes(task, first[0])


def _check_shapes(task: Task, inputs: Inputs) -> None:
    # Ranks that read nothing know the shapes of a share only from the plan, which was made with the example.
    layout = read_layout(task.model, task.example_inputs)
    examples = describe(name_inputs(layout, task.example_inputs))
    for given, example in zip(describe(name_inputs(layout, inputs)), examples, strict=True):
        if given != example:
            raise InvalidInput(
                f"input '{given.name}' of a sample is {given.dtype}{[*given.sample_shape]}, in the example it is "
                f"{example.dtype}{[*example.sample_shape]}",
                where="dataset",
                remedy="Pad or convert the samples (collate=), or give an example like them. epoch= may yield other "
                "shapes in each mini-batch.",
            )


def _of_dataset(config: TrainConfig, task: Task, source: SampleSource) -> int:
    size, count = config.train.batch_size, _samples_of(config, task, source)
    if count < size:
        raise InvalidInput(
            f"an epoch has {count} samples, and a mini-batch has {size}",
            where="train.batch_size",
            remedy="Choose a smaller batch, or a longer epoch.",
        )
    return count // size


def _samples_of(config: TrainConfig, task: Task, source: SampleSource) -> int:
    # Samples of the first epoch.
    count = len(source.dataset)
    return count if task.sampler is None else len(epoch_order(task.sampler, count, 0, config.train.seed))


def _of_mini_batches(config: TrainConfig, task: Task) -> int:
    # Only epochs are counted to the end, because that may take as long as reading them.
    size = config.train.batch_size
    assert task.epoch is not None, "a task gives mini-batches or a data set"
    epoch = cast("object", task.epoch(0, size, config.train.seed))
    if not isinstance(epoch, Iterable):
        raise InvalidInput(
            f"returned {type(epoch).__name__}, must return or yield mini-batches (inputs, targets)",
            where="epoch",
        )
    batches = iter(cast("Iterable[object]", epoch))
    first = next(batches, None)
    if first is None:
        raise InvalidInput(
            f"an epoch has no mini-batch of {size} samples",
            where="train.batch_size",
            remedy="Choose a smaller batch, or a longer epoch.",
        )
    check_first(first, task, size)
    if config.train.epochs is None:
        return 1
    return length_hint(epoch) or 1 + sum(1 for _ in batches)
