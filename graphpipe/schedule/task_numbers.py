"""Numbers the tasks of a plan, and derives which samples flow between them. Merging and lowering both use this.

Devices that share a replica do the same tasks, each under a number of its own. Two replicas of a stage usually receive
the same messages at the same times. So one device stands for several, and an order or a time has to be found only once
(`equal_devices`).
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.plans.sharding import (
    CommonSamples,
    SampleRange,
    common_samples,
    count_micro_batches,
    sample_range,
    sender,
)
from graphpipe.schedule.schedule import StageTask

FORWARD_TICKS, BACKWARD_TICKS = 1, 2
"""Logical time of the forward and of the backward of one sample on one replica. Each half of a backward takes half."""

_THIRDS = {"B": 0, "I": 0, "F": 1, "W": 2}

Piece = tuple[SampleRange, int]
"""The samples of a task on one replica, and the number of the backward of its micro-batch on its first device."""


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
    """Numbers 0, 1, ... for every task of every device: all backwards, then all forwards, then all weight gradients.

    Within each third, tasks are ordered by stage, then its devices, then micro-batch. An input gradient has the number
    of the backward that it is half of, because it waits for the same messages and sends the same messages. Only updates
    wait for weight gradients. The updates come last, by stage, device and mini-batch.
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
            firsts.append(firsts[-1] + len(stage.devices) * count)
        return tuple(firsts)

    @property
    def updates(self) -> int:
        """Updates of each device: the mini-batches of a segment."""
        return self.batch_size // self.plan.batch_size

    @property
    def third(self) -> int:
        """The count of backwards. A forward's number is its backward's plus this, a weight gradient's plus 2 x this."""
        return self.firsts[-1]

    def number(self, task: StageTask, device: int) -> int:
        """Return the number of a task on one of the devices that host its stage."""
        if task.kind == "U":
            place = sum(len(stage.devices) for stage in self.plan.stages[: task.stage])
            place += self.plan.stages[task.stage].devices.index(device)
            return 3 * self.third + place * self.updates + task.micro_batch
        return self.first(task.stage, device) + task.micro_batch + self.third * _THIRDS[task.kind]

    def first(self, stage: int, device: int) -> int:
        """Return the number of a stage's first backward on one of its devices."""
        return self.firsts[stage] + self.plan.stages[stage].devices.index(device) * self.counts[stage]

    def pieces(self, stage: int) -> list[Piece]:
        """Return the samples of every task of a stage in ascending order, with the number of its backward.

        Leaves out a replica that has no sample of a short micro-batch.
        """
        it, count = self.plan.stages[stage], self.counts[stage]
        samples = (
            (
                sample_range(self.batch_size, it.micro_batch, it.degree, index, replica),
                self.firsts[stage] + replica * it.tensor * count + index,
            )
            for index in range(count)
            for replica in range(it.degree)
        )
        return [piece for piece in samples if len(piece[0])]

    @cached_property
    def all_pieces(self) -> tuple[list[Piece], ...]:
        """`pieces` of every stage."""
        return tuple(self.pieces(stage) for stage in range(len(self.plan.stages)))

    @cached_property
    def samples(self) -> list[int]:
        """Samples of each task, by number; an update has none."""
        third = [0] * self.third
        for number, (stage, count) in enumerate(zip(self.plan.stages, self.counts, strict=True)):
            if not (self.batch_size % stage.micro_batch or stage.micro_batch % stage.degree):
                first, last = self.firsts[number : number + 2]
                third[first:last] = [stage.micro_batch // stage.degree] * (last - first)
                continue
            for samples, backward in self.all_pieces[number]:
                for rank in range(stage.tensor):
                    third[backward + rank * count] = len(samples)
        return third * 3 + [0] * (self.updates * sum(len(stage.devices) for stage in self.plan.stages))

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
                for own, other in self._senders(edge.source, here, edge.target, there):
                    yield Flow(position, False, own + third, other + third, samples)
                if gradient:
                    for own, other in self._senders(edge.target, there, edge.source, here):
                        yield Flow(position, True, own, other, samples)

    def _senders(self, source: int, here: int, target: int, there: int) -> Iterator[tuple[int, int]]:
        """Yield, for each device that shares the replica of a target's task, the numbers of what it needs and of it."""
        one, other = self.plan.stages[source], self.plan.stages[target]
        if one.tensor == other.tensor == 1:
            yield here, there
            return
        count, step = self.counts[source], self.counts[target]
        team = one.replicas[(here - self.firsts[source]) // count // one.tensor]
        readers = other.replicas[(there - self.firsts[target]) // step // other.tensor]
        for rank, device in enumerate(readers):
            place = team.index(sender(team, device, rank))
            yield here + place * count, there + rank * step


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
            tied = (gradients.stages for gradients in plan.tied_gradients if task.stage in gradients.stages)
            for stage in {task.stage}.union(*tied):
                yield from ((last, number) for last in lasts[stage, task.micro_batch])


def _overlaps(left: list[Piece], right: list[Piece]) -> Iterator[tuple[SampleRange, int, int]]:
    # Both sides cut the same mini-batch into consecutive ranges, so one pass finds all overlaps, and both end together.
    a = b = 0
    while a < len(left):
        one, here = left[a]
        other, there = right[b]
        yield one & other, here, there
        a, b = a + (one.stop <= other.stop), b + (other.stop <= one.stop)


class Passage(NamedTuple):
    """What passes along a stage edge from one device to another."""

    edge: int
    backward: bool
    kind: int
    """Position of the samples in `CommonSamples.pieces` of the two stages."""


Channels = dict[tuple[int, int], list[Passage]]
"""What passes from a source to a target device, which may be the same."""


def channels_of(plan: Plan, batch_size: int) -> Channels:
    """Return what passes between the devices of a plan for so many samples, gradients included."""
    channels: Channels = {}
    for position, edge in enumerate(plan.edges):
        here, there = plan.stages[edge.source].replicas, plan.stages[edge.target].replicas
        trains = position in plan.gradient_edges
        for replica, other, kind in samples_along(plan, position, batch_size).pairs:
            for rank, target in enumerate(there[other]):
                source = sender(here[replica], target, rank)
                channels.setdefault((source, target), []).append(Passage(position, False, kind))
            for rank, source in enumerate(here[replica] if trains else ()):
                target = sender(there[other], source, rank)
                channels.setdefault((target, source), []).append(Passage(position, True, kind))
    return channels


def samples_along(plan: Plan, edge: int, batch_size: int) -> CommonSamples:
    """Return which replicas at the ends of a stage edge have samples in common."""
    source, target = plan.stages[plan.edges[edge].source], plan.stages[plan.edges[edge].target]
    return common_samples(batch_size, source.micro_batch, source.degree, target.micro_batch, target.degree)


def equal_devices(
    own: Iterable[Hashable], channels: Mapping[tuple[int, int], Hashable], *, counted: bool = False
) -> list[int]:
    """Return for each device the first one that does the same at the same times.

    Colour refinement: devices with equal work get equal colours. Devices that receive other messages, or the same
    messages from other colours, then get different colours, until nothing changes.

    Args:
        own: the work of each device.
        channels: what each device sends another one.
        counted: whether it matters how many devices of a colour send the same to a device.
    """
    colours = first_equal(own)
    arriving: list[list[tuple[int, int]]] = [[] for _ in colours]
    for (source, target), kind in zip(channels, first_equal(channels.values()), strict=True):
        arriving[target].append((source, kind))
    while True:
        coloured = [_coloured(some, colours) for some in arriving]
        seen = [tuple(sorted(some)) for some in coloured] if counted else [frozenset(some) for some in coloured]
        refined = first_equal(zip(colours, seen, strict=True))
        if refined == colours:
            return colours
        colours = refined


def first_equal(items: Iterable[Hashable]) -> list[int]:
    """Return for each item the position of the first one equal to it."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(item, position) for position, item in enumerate(items)]


def _coloured(arriving: Sequence[tuple[int, int]], colours: Sequence[int]) -> list[tuple[int, int]]:
    return [(colours[source], kind) for source, kind in arriving]
