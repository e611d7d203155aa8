"""The averages of the weights in place of the weights, for an evaluation or a file."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from graphpipe.run.comm.broadcast import copy_state
from graphpipe.run.weights.weight_update import ScheduledOptimizer
from graphpipe.run.worker.worker import StageWorker


@contextmanager
def averaged(worker: StageWorker, optimizers: Sequence[ScheduledOptimizer]) -> Generator[None]:
    """Exchange the weights of this rank with their averages, until the end of the block."""
    _exchange(worker, optimizers)
    try:
        yield
    finally:
        _exchange(worker, optimizers)


def copy_to_followers(worker: StageWorker) -> None:
    """Give all replicas of this rank the parameters and buffers of the first of their stage."""
    for leader in worker.leaders():
        for follower in worker.of_stage(leader.slot.stage)[1:]:
            copy_state(leader.module, follower.module)


def _exchange(worker: StageWorker, optimizers: Sequence[ScheduledOptimizer]) -> None:
    for scheduled in optimizers:
        if scheduled.average is not None:
            scheduled.average.swap()
    copy_to_followers(worker)
