"""The repeating part of a training step, and which of its replicas have equal work at equal times."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from graphpipe.plans import Plan
from graphpipe.schedule import Schedule, StageTask
from graphpipe.schedule.list_scheduling.equal_stages import first_equal
from graphpipe.schedule.schedule import Kind
from graphpipe.schedule.task_numbers import TaskNumbers
from graphpipe.simulator.activities import seconds_of

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")

Slot = int
"""A replica of a stage, by its position among all replicas, stage by stage."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A transfer that a task of a period waits for."""

    source: int
    """Number of the producing task in the period."""
    seconds: float
    """Seconds of the transfer."""
    channel: tuple[Slot, Slot]


# No slots: the derived tables below are cached properties.
@dataclass(frozen=True)
class Period:
    """The least number of samples that all micro-batch sizes divide. Dependencies repeat with every such period."""

    plan: Plan
    schedule: Schedule

    @cached_property
    def samples(self) -> int:
        """Samples of one period."""
        return lcm(*(stage.micro_batch for stage in self.plan.stages))

    @cached_property
    def numbers(self) -> TaskNumbers:
        """Numbers of the tasks of one period."""
        return TaskNumbers(self.plan, self.samples)

    @cached_property
    def slots(self) -> list[tuple[int, int]]:
        """Stage and device of each slot."""
        return [(number, device) for number, stage in enumerate(self.plan.stages) for device in stage.devices]

    @cached_property
    def firsts(self) -> list[int]:
        """Number of the first backward of each slot."""
        return [self.numbers.number(StageTask("B", stage, 0), device) for stage, device in self.slots]

    @cached_property
    def seconds(self) -> list[tuple[float, ...]]:
        """Seconds of a task of each slot, by kind in the order of `KINDS`."""
        found: list[tuple[float, ...]] = []
        for number, device in self.slots:
            stage = self.plan.stages[number]
            samples = stage.micro_batch / stage.degree
            seconds = self.plan.cost_model.task_seconds(stage.ops, device, samples, stage.recompute)
            found.append(tuple(seconds_of(kind, seconds, self.plan.costs) for kind in KINDS))
        return found

    @cached_property
    def begins(self) -> list[float]:
        """When each slot may start: once its replicas have gathered their weights, if they shard them."""
        gathers = [self.plan.gather_seconds(stage) for stage in range(len(self.plan.stages))]
        return [gathers[stage] for stage, _ in self.slots]

    @cached_property
    def slot_of(self) -> list[Slot]:
        """The slot of each task number."""
        third = [slot for slot, (stage, _) in enumerate(self.slots) for _ in range(self.numbers.counts[stage])]
        return third * 3

    @cached_property
    def arrivals(self) -> list[list[Arrival]]:
        """What each task waits for, by number."""
        found: list[list[Arrival]] = [[] for _ in self.slot_of]
        for flow in self.numbers.flows(None):
            source, target = self.slot_of[flow.source], self.slot_of[flow.target]
            count = self.plan.edges[flow.edge].bytes_per_sample * len(flow.samples)
            seconds = self.plan.cost_model.transfer_seconds(count, self.slots[source][1], self.slots[target][1])
            found[flow.target].append(Arrival(flow.source, seconds, (source, target)))
        return found

    @cached_property
    def alike(self) -> list[Slot]:
        """By slot: the first slot with the same tasks at the same times.

        Colour refinement: slots start with the same colour if they take equal times for equal lists of tasks. Slots
        that wait for different colours then get different colours, until nothing changes. Slots of the same colour have
        equal times.
        """
        orders = [tuple(task.kind for task in self.schedule.devices[device]) for _, device in self.slots]
        colours = first_equal(list(zip(self.seconds, self.begins, orders, strict=True)))
        while True:
            refined = first_equal([(colours[slot], self._waits(slot, colours)) for slot in range(len(self.slots))])
            if refined == colours:
                return colours
            colours = refined

    def _waits(self, slot: Slot, colours: Sequence[Slot]) -> Hashable:
        count = self.numbers.counts[self.slots[slot][0]]
        return tuple(
            frozenset((self._place(arrival.source, colours), arrival.seconds) for arrival in self.arrivals[number])
            for first in (self.firsts[slot], self.firsts[slot] + self.numbers.third)
            for number in range(first, first + count)
        )

    def _place(self, number: int, colours: Sequence[Slot]) -> tuple[int, int]:
        # A task as its slot's colour and its position in the slot.
        slot = self.slot_of[number]
        return colours[slot], number - self.firsts[slot]
