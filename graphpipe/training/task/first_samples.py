"""The first samples of a task, for what comes before a training: checks and profiles."""

from graphpipe.model.inputs import with_containers
from graphpipe.run.device.seeded import seeded
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.training.task.sample_order import epoch_order
from graphpipe.training.task.share_reader import BatchRequest, ShareReader
from graphpipe.training.task.task import Batch, Task, as_batch


def first_samples(task: Task, count: int, batch_size: int, seed: int) -> Batch:
    """Return the first samples of a training.

    Args:
        task: gives its mini-batches, of which the first one is returned, or a data set.
        count: samples to read of a data set.
        batch_size: of the training.
        seed: of the training.

    Raises:
        InvalidInput: a sample cannot be read, or samples cannot be joined.
    """
    if (source := task.source()) is None:
        assert task.epoch is not None, "a task gives mini-batches or a data set"
        return as_batch(next(iter(task.epoch(0, batch_size, seed))), "epoch")
    samples = epoch_order(task.sampler, len(source.dataset), 0, seed)[:count].tolist()
    rows = range(len(samples))
    needs = Needs(size=len(samples), inputs=dict.fromkeys(source.inputs, rows), targets=rows)
    with seeded(0):
        share = ShareReader.of(source, needs, seed).read(BatchRequest(0, samples))
    return with_containers(source.layout, share.inputs), share.targets
