"""The mini-batches of a training, from any position in its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from graphpipe.errors import InvalidInput
from graphpipe.run.checkpoint.training_state import DataPosition
from graphpipe.run.device.random_state import RandomState
from graphpipe.run.stage.shares.needs import Needs
from graphpipe.training.task.task import Batch, Task, as_batch


@dataclass(slots=True, kw_only=True)
class DataReader:
    """Endless mini-batches of a task, epoch after epoch.

    To continue in the middle of an epoch, the random generators are set to their state at the epoch's start, and the
    mini-batches before the position are drawn and dropped. The next mini-batches are then those of an uninterrupted
    run.
    """

    task: Task
    batch_size: int
    seed: int
    position: DataPosition
    """After the last mini-batch that was returned."""

    def batches(self, needs: Needs) -> Iterator[Batch]:
        """Yield the whole mini-batches from the position on, whatever this rank needs of them."""
        del needs
        return iter(self)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the mini-batches from the position on.

        Raises:
            InvalidInput: an epoch yields none.
        """
        assert self.task.epoch is not None, "a task with a data set has another reader"
        while True:
            start = self.position
            if start.random is not None:
                start.random.restore()
            random = start.random or RandomState.now()
            batches = iter(self.task.epoch(start.epoch, self.batch_size, self.seed))
            for done, batch in enumerate(islice(batches, start.batch, None), start.batch + 1):
                self.position = DataPosition(epoch=start.epoch, batch=done, random=random)
                yield as_batch(batch, "a mini-batch of the epoch")
            if self.position == start and not start.batch:
                raise InvalidInput(
                    f"yielded no mini-batch of {self.batch_size} samples in epoch {start.epoch}",
                    where="epoch",
                    remedy="Make the data anew in every epoch: an iterator that was read to its end yields no more.",
                )
            self.position = DataPosition(epoch=start.epoch + 1)
