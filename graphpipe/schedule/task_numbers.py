"""Numbers the tasks of a plan, and derives which samples flow between them. Merging and lowering both use this."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, count_micro_batches, sample_range
from graphpipe.schedule.schedule import StageTask

FORWARD_TICKS, BACKWARD_TICKS = 1, 2
"""Logical time of the forward and of the backward of one sample on one replica. Each half of a backward takes half."""

Piece = tuple[SampleRange, int]
"""The samples of a task on one replica, and the number of the micro-batch's backward there."""


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
    """Numbers 0, 1, ... for every task of every replica: all backwards, then all forwards, then all weight gradients.

    Within each third, tasks are ordered by stage, then replica, then micro-batch. An input gradient has the number of
    the backward that it is half of, because it waits for the same messages and sends the same messages. Only updates
    wait for weight gradients. The updates come last, by stage, replica and mini-batch.
    """

    plan: Plan
    batch_size: int

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches of each stage."""
        return tuple(count_micro_batches(self.batch_size, stage.micro_batch) for stage in self.plan.stages)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The number of each stage's first backward, and at the end the number of the first forward."""
        firsts = [0]
        for stage, count in zip(self.plan.stages, self.counts, strict=True):
            firsts.append(firsts[-1] + stage.degree * count)
        return tuple(firsts)

    @property
    def updates(self) -> int:
        """Updates of each replica: the mini-batches of a segment."""
        return self.batch_size // self.plan.batch_size

    @property
    def third(self) -> int:
        """The count of backwards. A forward's number is its backward's plus this, a weight gradient's plus 2 x this."""
        return self.firsts[-1]

    def number(self, task: StageTask, device: int) -> int:
        """Return the number of a task on one of the devices that host its stage."""
        replica = self.plan.stages[task.stage].devices.index(device)
        if task.kind == "U":
            place = sum(stage.degree for stage in self.plan.stages[: task.stage]) + replica
            return 3 * self.third + place * self.updates + task.micro_batch
        backward = self.firsts[task.stage] + replica * self.counts[task.stage] + task.micro_batch
        return backward + self.third * {"B": 0, "I": 0, "F": 1, "W": 2}[task.kind]

    def pieces(self, stage: int) -> list[Piece]:
        """Return the samples of every task of a stage in ascending order, with the number of its backward.

        Leaves out a replica that has no sample of a short micro-batch.
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
    def samples(self) -> list[int]:
        """Samples of each task, by number; an update has none."""
        third = [0] * self.third
        for pieces in self.all_pieces:
            for samples, backward in pieces:
                third[backward] = len(samples)
        return third * 3 + [0] * (self.updates * sum(stage.degree for stage in self.plan.stages))

    def ticks(self, tasks: Mapping[int, StageTask]) -> list[int]:
        """Return the logical duration of each task, by number. It is 0 without samples, and for other numbers."""
        ticks = [0] * len(self.samples)
        for number, task in tasks.items():
            # An update takes no logical time: it has no samples.
            whole = {"F": FORWARD_TICKS, "B": BACKWARD_TICKS}.get(task.kind, BACKWARD_TICKS // 2)
            ticks[number] = whole * self.samples[number]
        return ticks

    def flows(self, gradient_edges: frozenset[int] | None) -> Iterator[Flow]:
        """Yield every flow: outputs forward, and gradients back along `gradient_edges` (None takes the plan's)."""
        third, back = self.third, self.plan.gradient_edges if gradient_edges is None else gradient_edges
        for position, edge in enumerate(self.plan.edges):
            gradient = position in back
            for samples, here, there in _overlaps(self.all_pieces[edge.source], self.all_pieces[edge.target]):
                yield Flow(position, False, here + third, there + third, samples)
                if gradient:
                    yield Flow(position, True, there, here, samples)


def update_waits(plan: Plan, tasks: Mapping[int, StageTask]) -> Iterator[tuple[int, int]]:
    """Yield pairs of numbers: the last weight gradient of a mini-batch on a replica, and an update that waits for it.

    An update waits until gradients are summed over the stage's replicas, and over the stages that share parameters.

    Args:
        plan: which stages share parameters.
        tasks: of all devices, by number.
    """
    lasts: dict[tuple[int, int], list[int]] = {}
    counts = [plan.micro_batches(stage) for stage in range(len(plan.stages))]
    for number, task in tasks.items():
        mini_batch, inside = divmod(task.micro_batch, counts[task.stage])
        if task.kind in ("B", "W") and inside == counts[task.stage] - 1:
            lasts.setdefault((task.stage, mini_batch), []).append(number)
    for number, task in tasks.items():
        if task.kind == "U":
            tied = (each.stages for each in plan.tied_gradients if task.stage in each.stages)
            for stage in {task.stage}.union(*tied):
                yield from ((last, number) for last in lasts[stage, task.micro_batch])


def _overlaps(left: list[Piece], right: list[Piece]) -> Iterator[tuple[SampleRange, int, int]]:
    # Both sides cut the same mini-batch into consecutive ranges, so one pass over both finds all overlaps.
    a = b = 0
    while a < len(left) and b < len(right):
        one, here = left[a]
        other, there = right[b]
        yield one & other, here, there
        a, b = a + (one.stop <= other.stop), b + (other.stop <= one.stop)
