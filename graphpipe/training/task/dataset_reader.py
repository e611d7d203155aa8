"""The mini-batches of a training whose task gives a data set: a rank reads its share of them, from any position."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.run.stage.shares.batch_share import BatchShare
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.training.task.sample_order import epoch_order
from graphpipe.training.task.sample_source import SampleSource
from graphpipe.training.task.sample_work import Arrange
from graphpipe.training.task.share_reader import BatchRequest, ShareReader, read_shares


@dataclass(slots=True, kw_only=True)
class DatasetReader:
    """Endless shares of mini-batches, epoch after epoch.

    The order of an epoch follows from its number and the seed, so a training resumes at once: nothing is drawn again.
    """

    source: SampleSource
    sampler: Any
    """As in `epoch_order`."""
    batch_size: int
    seed: int
    workers: int = 0
    prefetch: int = 2
    arrange: Arrange | None = None
    """Puts the samples of a mini-batch into another order, the same on every rank."""
    position: DataPosition = field(default_factory=DataPosition)
    """After the last mini-batch that was returned."""
    before: DataPosition = field(default_factory=DataPosition)
    """Before the last mini-batch that was returned."""

    def batches(self, needs: Needs) -> Iterator[BatchShare]:
        """Yield a rank's shares of the mini-batches from the position on.

        Raises:
            InvalidInput: an epoch has no whole mini-batch, or a sample cannot be read.
        """
        asked: deque[DataPosition] = deque()
        readers = {self.batch_size: ShareReader.of(self.source, needs, self.seed)}
        requests = self._requests(self.position, asked)
        for share in read_shares(readers, requests, workers=self.workers, prefetch=self.prefetch):
            self.before, self.position = self.position, asked.popleft()
            yield share

    def step_back(self) -> None:
        """Go back to before the last mini-batch that was returned."""
        self.position = self.before

    def _requests(self, start: DataPosition, asked: deque[DataPosition]) -> Iterator[BatchRequest]:
        epoch, first = start.epoch, start.batch
        while True:
            order = epoch_order(self.sampler, len(self.source.dataset), epoch, self.seed)
            whole = len(order) // self.batch_size
            if not whole:
                raise InvalidInput(
                    f"epoch {epoch} has {len(order)} samples, and a mini-batch has {self.batch_size}",
                    where=self.source.field,
                    remedy="Choose a smaller train.batch_size.",
                )
            for number in range(first, whole):
                asked.append(DataPosition(epoch=epoch, batch=number + 1))
                rows = slice(number * self.batch_size, (number + 1) * self.batch_size)
                samples = order[rows].tolist()
                yield BatchRequest(epoch, samples if self.arrange is None else self.arrange(samples))
            epoch, first = epoch + 1, 0
