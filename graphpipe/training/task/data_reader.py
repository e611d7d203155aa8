"""Where in the data a training is, and the mini-batches from there on."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from pydantic import ConfigDict

from graphpipe.files.json_document import Count
from graphpipe.run.checkpoint.random_state import RandomState
from graphpipe.training.task.task import Batch, Task, as_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """So many mini-batches of an epoch are done."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    epoch: Count = 0
    """From 0."""
    batch: Count = 0
    random: RandomState | None = None
    """As the epoch began: its mini-batches are drawn once more to get to the position. None leaves them alone."""


@dataclass(slots=True, kw_only=True)
class Reader:
    """The mini-batches of a task without end, epoch after epoch.

    An epoch that is entered in its middle starts with the random generators as they were when it first began, and
    its first mini-batches are drawn and dropped: what follows is what would have followed.
    """

    task: Task
    batch_size: int
    seed: int
    position: Position
    """After the last mini-batch given out."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the mini-batches from the position on."""
        while True:
            start = self.position
            if start.random is not None:
                start.random.restore()
            random = start.random or RandomState.now()
            batches = iter(self.task.epoch(start.epoch, self.batch_size, self.seed))
            for done, batch in enumerate(islice(batches, start.batch, None), start.batch + 1):
                self.position = Position(epoch=start.epoch, batch=done, random=random)
                yield as_batch(batch, "a mini-batch of the epoch")
            self.position = Position(epoch=start.epoch + 1)
