"""Evaluates a task on its held-out samples: the loss, and the user's metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from graphpipe.errors import InvalidInput
from graphpipe.plans.sharding import SampleRange
from graphpipe.run.comm.collective_calls import collective_call, wait_for_ranks
from graphpipe.run.pipeline import Pipeline
from graphpipe.run.stage.loss import kind_of
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.tensor_tree import leaves, map_tensors
from graphpipe.run.step.gather_outputs import Piece, join
from graphpipe.training.config.settings import TrainSettings
from graphpipe.training.task.sample_source import SampleSource
from graphpipe.training.task.share_reader import BatchRequest, ShareReader, read_shares
from graphpipe.training.task.task import Task

ACCURACY = "accuracy"
"""The name of what the task's accuracy function returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What an evaluation of the held-out samples has found, the same on every rank."""

    loss: float | None = None
    """Mean loss over the samples; None without targets."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the task's functions returned, by name. That of `accuracy` has this name."""

    @property
    def accuracy(self) -> float | None:
        """What the task's accuracy function returned."""
        return self.metrics.get(ACCURACY)


def evaluate_task(task: Task, pipeline: Pipeline, settings: TrainSettings) -> HeldOut:
    """Return loss and metrics on the held-out samples; every rank must call this.

    Args:
        task: has the held-out samples.
        pipeline: with the trained model.
        settings: say how a data set is read.

    Raises:
        InvalidInput: a sample cannot be read, outputs cannot be joined, or a metric is no number.
        PeerLost, PeerStalled: another rank is gone.
    """
    if task.held_out is None:
        return HeldOut()
    wanted = task.accuracy is not None or task.metrics is not None
    return _evaluated(task, pipeline, settings, wanted, None)


def try_metrics(task: Task, pipeline: Pipeline, settings: TrainSettings) -> None:
    """Compute the metrics of one mini-batch of held-out samples, before a training whose end would refuse them.

    Args:
        task: may have held-out samples and metrics.
        pipeline: with the model.
        settings: say how a data set is read.

    Raises:
        InvalidInput, PeerLost, PeerStalled: as `evaluate_task`.
    """
    if task.held_out is not None and (task.accuracy is not None or task.metrics is not None):
        _evaluated(task, pipeline, settings, True, settings.batch_size)


def _evaluated(task: Task, pipeline: Pipeline, settings: TrainSettings, wanted: bool, most: int | None) -> HeldOut:
    # `most`: of the samples; None: all.
    if (source := task.held_out_source()) is None:
        inputs, targets = map_tensors(task.held_out, lambda each: each[:most])
        loss, outputs = pipeline.evaluate(inputs, targets, gather=wanted)
    else:
        loss, outputs, targets = _of_dataset(source, pipeline, settings, wanted, most)
    return HeldOut(loss=loss, metrics=_metrics(task, pipeline, outputs, targets) if wanted else {})


def _of_dataset(
    source: SampleSource, pipeline: Pipeline, settings: TrainSettings, wanted: bool, most: int | None
) -> tuple[float | None, Any, Any]:
    # Loss, and outputs and targets of all samples on rank 0.
    pieces: list[Piece] = []
    done = 0

    def keep(outputs: Any, targets: Any) -> None:
        nonlocal done
        size = min(settings.batch_size, len(source.dataset) - done)
        if pipeline.world.rank == 0:
            pieces.append((SampleRange(done, done + size), map_tensors((outputs, targets), torch.Tensor.cpu)))
        done += size

    loss = pipeline.evaluate_all(held_out_shares(source, pipeline, settings, most), each=keep if wanted else None)
    outputs, targets = collective_call(pipeline.world, lambda: _joined(pieces) if pieces else (None, None))
    return loss, outputs, targets


def held_out_shares(
    source: SampleSource, pipeline: Pipeline, settings: TrainSettings, most: int | None = None
) -> Iterator[BatchShare]:
    """Yield this rank's shares of the mini-batches of a data set, in order; the last one may be smaller.

    Args:
        source: of the samples.
        pipeline: says which of them this rank needs.
        settings: say how it is read.
        most: of its samples, the first ones; None: all.
    """
    size, count = settings.batch_size, len(source.dataset) if most is None else min(most, len(source.dataset))
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


def _metrics(task: Task, pipeline: Pipeline, outputs: Any, targets: Any) -> dict[str, float]:
    # Computed on rank 0. A rank that is lost in the user's function is noticed before rank 0 writes results.
    def work() -> list[Any]:
        return _found(task, _beside(outputs, targets), targets) if pipeline.world.rank == 0 else []

    found, refused = wait_for_ranks(pipeline.world, work)[0]
    if refused:
        where, what, wanted, remedy = refused
        raise InvalidInput(f"returned {what}, must return {wanted}", where=where, remedy=remedy)
    return found


def _beside(outputs: Any, targets: Any) -> Any:
    # A metric compares both. The outputs are on the device of the pipeline, the targets where the user put them.
    where = next((each.device for each in leaves(targets)), torch.device("cpu"))
    if all(each.device == where for each in leaves(outputs)):
        return outputs
    return map_tensors(outputs, lambda each: each.to(where))


def _found(task: Task, outputs: Any, targets: Any) -> list[Any]:
    # The numbers by name, and which function returned what in place of numbers.
    found: dict[str, float] = {}
    if task.accuracy is not None and not _put(found, ACCURACY, value := task.accuracy(outputs, targets)):
        several = "Give a function that returns several numbers by name as Task(metrics=...)."
        remedy = several if isinstance(value, Mapping) else "Return its mean()."
        return [found, ["accuracy", kind_of(value), "one number", remedy]]
    if task.metrics is None:
        return [found, None]
    given = cast("object", task.metrics(outputs, targets))
    if not isinstance(given, Mapping):
        return [found, ["metrics", kind_of(given), "a dict of numbers by name", ""]]
    for name, value in cast("Mapping[object, object]", given).items():
        if not _put(found, str(name), value):
            return [found, ["metrics", f"{kind_of(value)} for '{name}'", "numbers", "Return its mean()."]]
    return [found, None]


def _put(found: dict[str, float], name: str, value: object) -> bool:
    try:
        found[name] = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
