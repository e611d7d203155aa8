"""Whether a plan can train the smaller mini-batches of an epoch, such as the last one, found before the first step."""

import time
from collections.abc import Iterable, Sized
from itertools import islice
from threading import Thread
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from graphpipe.errors import InvalidInput
from graphpipe.model.inputs import name_inputs
from graphpipe.plans import Plan
from graphpipe.run.comm.rank_placement import RankPlacement
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.weights.check_sync import check_samples
from graphpipe.run.weights.stage_syncs import StageSyncs
from graphpipe.run.worker.smaller_batches import smaller_plan
from graphpipe.training.config.settings import TrainConfig, TrainSettings
from graphpipe.training.task.task import Task, as_batch

_SECONDS = 2.0
"""For how long an epoch is read whose sizes are not known otherwise."""


def check_sizes(config: TrainConfig, task: Task, plan: Plan) -> None:
    """Check that a plan can train every mini-batch of the first epoch, as far as a training goes.

    The last size of a `DataLoader` is known. Other epochs are read for a while, which may find nothing.

    Args:
        config: of the training.
        task: its task. A data set drops what is left of an epoch.
        plan: to be run.

    Raises:
        InvalidInput: it cannot train one.
    """
    if task.epoch is None:
        return
    random = RandomState.now()
    try:
        epoch = cast("object", task.epoch(0, config.train.batch_size, config.train.seed))
        left = _left_over(epoch, steps := config.train.steps)
        for size in _read_sizes(plan, cast("Iterable[object]", epoch), steps) if left is None else left:
            _check(plan, size, config.train)
    finally:
        random.restore()


def _check(plan: Plan, size: int, settings: TrainSettings) -> None:
    syncs = StageSyncs.of(plan, settings.engine, shard_optimizer=settings.shard_optimizer)
    try:
        smaller = smaller_plan(plan, size)
        check_samples(syncs.names, smaller, RankPlacement.of(smaller, len(plan.used_devices)))
    except InvalidInput as error:
        raise InvalidInput(error.what, where="epoch", remedy=error.remedy) from None


def _left_over(epoch: object, steps: int | None) -> list[int] | None:
    # The samples of a loader's last mini-batch, if there are fewer and the training reaches it; None if that is not
    # known without reading.
    if not isinstance(epoch, DataLoader):
        return None
    loader = cast("DataLoader[Any]", epoch)
    if (
        loader.batch_size is None
        or isinstance(loader.dataset, IterableDataset)
        or not isinstance(loader.sampler, Sized)
    ):
        return None
    whole, left = divmod(len(loader.sampler), loader.batch_size)
    reached = not loader.drop_last and (steps is None or steps > whole)
    return [left] if left and reached else []


def _read_sizes(plan: Plan, epoch: Iterable[object], steps: int | None) -> list[int]:
    """Return the samples of the mini-batches that can be read in time.

    A thread reads, because an epoch may wait for what comes later, such as for a stream. An error of the user's is not
    raised: the ranks read in their main threads, and meet it if it is not of the thread.
    """
    sizes: list[int] = []
    problems: list[InvalidInput] = []
    end = time.monotonic() + _SECONDS

    def read() -> None:
        try:
            for batch in islice(epoch, steps):
                if time.monotonic() > end:
                    return
                sizes.append(_size(plan, batch))
        except InvalidInput as error:
            problems.append(error)
        except Exception:
            return

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(_SECONDS)
    if problems:
        raise problems[0]
    return [*sizes]


def _size(plan: Plan, batch: object) -> int:
    inputs, _ = as_batch(batch, "a mini-batch of the epoch")
    return len(next(iter(name_inputs(plan.graph.input_layout, inputs).values())))
