"""The averages of the weights in place of the weights, for an evaluation or a file."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.run.worker.user_weights import UserWeights


@contextmanager
def averaged(weights: UserWeights, optimizers: Sequence[ScheduledOptimizer]) -> Generator[None]:
    """Exchange the weights of this rank with their averages, until the end of the block."""
    _exchange(weights, optimizers)
    try:
        yield
    finally:
        _exchange(weights, optimizers)


def _exchange(weights: UserWeights, optimizers: Sequence[ScheduledOptimizer]) -> None:
    for scheduled in optimizers:
        if scheduled.average is not None:
            scheduled.average.swap()
    weights.changed()
