"""The tasks of a plan as numbers, and which samples pass between which: what merging and lowering both stand on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from graphpipe.plan import Plan
from graphpipe.plan.sharding import SampleRange, count_micro_batches, sample_range
from graphpipe.schedule.schedule import Task

FORWARD_TICKS, BACKWARD_TICKS = 1, 2
"""Logical time of the forward and the backward of one sample on one replica."""

Piece = tuple[SampleRange, int]
"""Samples of a task on one replica, and the number of its backward."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Samples that one task produces and another consumes, along a stage edge."""

    edge: int
    backward: bool
    source: int
    """Number of the producing task."""
    target: int
    """Number of the consuming task."""
    samples: SampleRange


# No slots: the derived tables below are cached properties.
@dataclass(frozen=True)
class TaskNumbers:
    """Numbers 0, 1, ... for every task of every replica: first all backwards, then the forwards in the same order.

    Within each half: by stage, then replica, then micro-batch.
    """

    plan: Plan
    batch_size: int

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches of each stage."""
        return tuple(count_micro_batches(self.batch_size, stage.micro_batch) for stage in self.plan.stages)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Number of each stage's first backward; last of all the number of the first forward."""
        firsts = [0]
        for stage, count in zip(self.plan.stages, self.counts, strict=True):
            firsts.append(firsts[-1] + stage.degree * count)
        return tuple(firsts)

    @property
    def half(self) -> int:
        """The number of backwards, and what the number of a forward exceeds that of its backward by."""
        return self.firsts[-1]

    def number(self, task: Task, device: int) -> int:
        """Return the number of a task on one of the devices that host its stage."""
        replica = self.plan.stages[task.stage].devices.index(device)
        backward = self.firsts[task.stage] + replica * self.counts[task.stage] + task.micro_batch
        return backward if task.kind == "B" else backward + self.half

    def pieces(self, stage: int) -> list[Piece]:
        """Return the samples of every task of a stage in ascending order, with the number of its backward.

        A replica that has no sample of a short micro-batch is left out.
        """
        size, degree, count = self.plan.stages[stage].micro_batch, self.plan.stages[stage].degree, self.counts[stage]
        found = (
            (sample_range(self.batch_size, size, degree, index, replica), self.firsts[stage] + replica * count + index)
            for index in range(count)
            for replica in range(degree)
        )
        return [piece for piece in found if len(piece[0])]

    @cached_property
    def all_pieces(self) -> tuple[list[Piece], ...]:
        """`pieces` of every stage."""
        return tuple(self.pieces(stage) for stage in range(len(self.plan.stages)))

    @cached_property
    def ticks(self) -> list[int]:
        """Logical duration of each task, by number; 0 for a task without samples."""
        ticks = [0] * (2 * self.half)
        for pieces in self.all_pieces:
            for samples, backward in pieces:
                ticks[backward] = BACKWARD_TICKS * len(samples)
                ticks[backward + self.half] = FORWARD_TICKS * len(samples)
        return ticks

    def flows(self, gradient_edges: frozenset[int] | None) -> Iterator[Flow]:
        """Yield every flow: the outputs forward, and along `gradient_edges` (None: all) the gradients back."""
        half = self.half
        for position, edge in enumerate(self.plan.edges):
            gradient = gradient_edges is None or position in gradient_edges
            for samples, here, there in _overlaps(self.all_pieces[edge.source], self.all_pieces[edge.target]):
                yield Flow(position, False, here + half, there + half, samples)
                if gradient:
                    yield Flow(position, True, there, here, samples)


def _overlaps(left: list[Piece], right: list[Piece]) -> Iterator[tuple[SampleRange, int, int]]:
    # Both sides cut the same mini-batch into consecutive ranges: walk along the two together.
    a = b = 0
    while a < len(left) and b < len(right):
        one, here = left[a]
        other, there = right[b]
        yield one & other, here, there
        a, b = a + (one.stop <= other.stop), b + (other.stop <= one.stop)
