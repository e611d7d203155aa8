"""How many optimizer steps a training has."""

from collections.abc import Iterable
from operator import length_hint
from typing import cast

from graphpipe.errors import InvalidInput
from graphpipe.training.config.settings import TrainConfig
from graphpipe.training.task.task import Task, check_first


def count_steps(config: TrainConfig, task: Task) -> int:
    """Return the optimizer steps of a training, and check its first mini-batch.

    Raises:
        InvalidInput: an epoch has no mini-batch, or its first one has other inputs or another size than the task.
    """
    size = config.train.batch_size
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
    steps, epochs = config.train.steps, config.train.epochs
    if epochs is None:
        assert steps is not None
        return steps
    all_epochs = epochs * (length_hint(epoch) or 1 + sum(1 for _ in batches))
    return all_epochs if steps is None else min(steps, all_epochs)
