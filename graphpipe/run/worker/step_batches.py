"""The mini-batches of one run of a worker: one for a step, or several of a segment, without a flush in between.

2 mini-batches   samples       0 1 2 3 | 4 5 6 7
                 mini-batch        0   |    1
                 samples there 0 1 2 3 | 0 1 2 3
"""

from dataclasses import dataclass
from typing import Protocol

from graphpipe.plans import Stage
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.mini_batch import MiniBatch
from graphpipe.schedule import StageTask


class MiniBatches(Protocol):
    """A sequence of mini-batches, which may be read when they are needed."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, number: int, /) -> MiniBatch:
        """Return one of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """Mini-batches of one size, with the same shapes and micro-batches."""

    mini_batches: MiniBatches
    """The mini-batches, at least one."""
    size: int
    """The number of samples in all mini-batches."""
    micro_batches: tuple[int, ...]
    """The samples of one micro-batch, by stage."""
    specs: EdgeSpecs
    """The values on every stage edge."""

    @staticmethod
    def of(mini_batches: MiniBatches) -> "StepBatches":
        """Return these mini-batches with what is the same in all of them."""
        first = mini_batches[0]
        return StepBatches(
            mini_batches=mini_batches,
            size=first.size * len(mini_batches),
            micro_batches=first.micro_batches,
            specs=first.specs,
        )

    def rows_of(self, task: StageTask, stage: Stage, device: int) -> SampleRange:
        """Return the samples of a task, counted over all mini-batches.

        Args:
            task: of a stage. An update has all samples of its mini-batch.
            stage: the same one in the plan.
            device: one of its devices, whose share is wanted.
        """
        if task.kind == "U":
            samples = self.size // len(self.mini_batches)
            return SampleRange(task.micro_batch * samples, (task.micro_batch + 1) * samples)
        micro_batch = self.micro_batches[task.stage]
        return sample_range(self.size, micro_batch, stage.degree, task.micro_batch, stage.replica_of(device))

    def locate(self, rows: SampleRange) -> tuple[int, SampleRange]:
        """Return the mini-batch of some samples, and their positions in it."""
        samples = self.size // len(self.mini_batches)
        number = rows.start // samples
        return number, SampleRange(rows.start - number * samples, rows.stop - number * samples)
