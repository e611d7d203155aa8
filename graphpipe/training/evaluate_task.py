"""Evaluates a task on its held-out samples: the loss, and the user's accuracy."""

from collections.abc import Iterator
from typing import Any

import torch

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.collective_calls import wait_for_ranks
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.loss import kind_of
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.tensor_tree import map_tensors
from graphpipe.run.step.gather_outputs import Piece, join
from graphpipe.training.config.settings import TrainSettings
from graphpipe.training.task.sample_source import SampleSource
from graphpipe.training.task.share_reader import BatchRequest, ShareReader, read_shares
from graphpipe.training.task.task import Task


def evaluate_task(task: Task, pipeline: Pipeline, settings: TrainSettings) -> tuple[float | None, float | None]:
    """Return loss and accuracy on the held-out samples; every rank must call this.

    Args:
        task: has the held-out samples. The accuracy is None without an accuracy function.
        pipeline: with the trained model.
        settings: say how a data set is read.

    Raises:
        InvalidInput: a sample cannot be read, outputs cannot be joined, or the accuracy is no number.
        PeerLost, PeerStalled: another rank is gone.
    """
    if task.held_out is None:
        return None, None
    if (source := task.held_out_source()) is not None:
        return _of_dataset(task, source, pipeline, settings)
    inputs, targets = task.held_out
    loss, outputs = pipeline.evaluate(inputs, targets, gather=task.accuracy is not None)
    return loss, _accuracy(task, pipeline, outputs, targets, everywhere=True)


def _of_dataset(
    task: Task, source: SampleSource, pipeline: Pipeline, settings: TrainSettings
) -> tuple[float | None, float | None]:
    pieces: list[Piece] = []
    done = 0

    def keep(outputs: Any, targets: Any) -> None:
        nonlocal done
        size = min(settings.batch_size, len(source.dataset) - done)
        if pipeline.world.rank == 0:
            pieces.append((SampleRange(done, done + size), map_tensors((outputs, targets), torch.Tensor.cpu)))
        done += size

    shares = held_out_shares(source, pipeline, settings)
    loss = pipeline.evaluate_all(shares, each=keep if task.accuracy is not None else None)
    outputs, targets = _joined(pieces) if pieces else (None, None)
    return loss, _accuracy(task, pipeline, outputs, targets, everywhere=False)


def held_out_shares(source: SampleSource, pipeline: Pipeline, settings: TrainSettings) -> Iterator[BatchShare]:
    """Yield this rank's shares of the mini-batches of a whole data set, in order; the last one may be smaller."""
    size, count = settings.batch_size, len(source.dataset)
    requests = [BatchRequest(0, [*range(start, min(start + size, count))]) for start in range(0, count, size)]
    readers = {
        samples: ShareReader.of(source, pipeline.needs(samples), settings.seed)
        for samples in {len(request.samples) for request in requests}
    }
    return read_shares(readers, requests, workers=settings.workers, prefetch=settings.prefetch)


def _joined(pieces: list[Piece]) -> tuple[Any, Any]:
    try:
        return join(pieces)
    except RuntimeError as error:
        raise InvalidInput(
            f"the outputs of {len(pieces)} mini-batches cannot be joined: {error}",
            where="held_out",
            remedy="Give all samples at once, as one pair (inputs, targets).",
        ) from None


def _accuracy(task: Task, pipeline: Pipeline, outputs: Any, targets: Any, *, everywhere: bool) -> float | None:
    # With `everywhere`, every rank has the outputs and computes it. Otherwise rank 0 does.
    if (accuracy := task.accuracy) is None:
        return None

    def work() -> float | str:
        return _number(accuracy(outputs, targets)) if everywhere or pipeline.world.rank == 0 else 0.0

    # A rank that is lost in the user's function is noticed before rank 0 writes results.
    found = wait_for_ranks(pipeline.world, work)[0]
    if isinstance(found, str):
        raise InvalidInput(f"returned {found}, must return one number", where="accuracy", remedy="Return its mean().")
    return found


def _number(value: object) -> float | str:
    # The number, or what was returned in its place.
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError):
        return kind_of(value)
