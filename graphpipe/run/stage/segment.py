"""A segment: mini-batches that follow each other without a flush in between. A synchronous step is a segment of one.

segment of 2     samples       0 1 2 3 | 4 5 6 7
                 mini-batch        0   |    1
                 samples there 0 1 2 3 | 0 1 2 3
"""

from dataclasses import dataclass
from typing import Protocol

from graphpipe.plans.sharding import SampleRange
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.run.stage.mini_batch import MiniBatch


class MiniBatches(Protocol):
    """A sequence of mini-batches, which may be read when they are needed."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, number: int, /) -> MiniBatch:
        """Return one of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Mini-batches of one size, with the same shapes and micro-batches."""

    mini_batches: "MiniBatches"
    """At least one."""
    size: int
    """Samples in all mini-batches."""
    micro_batches: tuple[int, ...]
    """By stage: samples of one micro-batch."""
    specs: EdgeSpecs
    """The values on every stage edge."""

    @staticmethod
    def of(mini_batches: "MiniBatches") -> "Segment":
        """Return the segment of these mini-batches."""
        first = mini_batches[0]
        return Segment(
            mini_batches=mini_batches,
            size=first.size * len(mini_batches),
            micro_batches=first.micro_batches,
            specs=first.specs,
        )

    def locate(self, rows: SampleRange) -> tuple[int, SampleRange]:
        """Return the mini-batch of some samples of the segment, and their positions in it."""
        each = self.mini_batches[0].size
        number = rows.start // each
        return number, SampleRange(rows.start - number * each, rows.stop - number * each)
