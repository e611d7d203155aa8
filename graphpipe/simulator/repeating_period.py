"""The repeating part of a training step, and which of its devices have equal work at equal times."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange
from graphpipe.schedule import Schedule
from graphpipe.schedule.list_scheduling.equal_stages import first_equal
from graphpipe.schedule.list_scheduling.plan_work import hosted_stages
from graphpipe.schedule.schedule import Kind
from graphpipe.schedule.task_numbers import Flow, TaskNumbers
from graphpipe.simulator.activities import seconds_of

KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")

Line = int
"""A device in use, by its position in `Plan.used_devices`."""


class Message(NamedTuple):
    """What a task of a period sends to a task on another device."""

    source: int
    """Position of the task in the period of its device."""
    target: int
    """Position of the task that waits for it, in the period of the other device."""
    seconds: float
    carriers: tuple[int, ...] = ()
    """Messages of the same task on the same channel that carry all of its values, by their order. It takes no time, and
    arrives with the last of them."""


class _Sent:
    # The messages of each task on each channel, where some messages carry the values of others.
    def __init__(self) -> None:
        self._order: dict[tuple[int, int, SampleRange], int] = {}
        self._count: dict[tuple[int, Line], int] = {}

    def add(self, flow: Flow, target: Line, *, carries: bool) -> None:
        order = self._count.get((flow.source, target), 0)
        self._count[flow.source, target] = order + 1
        if carries and not flow.backward:
            self._order[flow.edge, target, flow.samples] = order

    def carriers(self, flow: Flow, edges: Sequence[int], target: Line) -> tuple[int, ...]:
        found = (self._order.get((edge, target, flow.samples)) for edge in edges)
        return tuple(order for order in found if order is not None)


# No slots: the derived tables below are cached properties.
@dataclass(frozen=True)
class Period:
    """The least number of samples that all micro-batch sizes divide. Dependencies repeat with every such period.

    The tasks of a device in one period have positions: all its backwards, stage by stage, then all its forwards, then
    all its weight gradients.
    """

    plan: Plan
    schedule: Schedule
    """Of one mini-batch, or of a segment."""

    @cached_property
    def mini_batches(self) -> int:
        """Of the schedule."""
        return self.schedule.mini_batches

    @cached_property
    def numbers(self) -> TaskNumbers:
        """Numbers of the tasks of one period."""
        return TaskNumbers(self.plan, lcm(*(stage.micro_batch for stage in self.plan.stages)))

    @cached_property
    def hosted(self) -> list[tuple[int, ...]]:
        """The stages on each line."""
        found = hosted_stages(self.plan)
        return [found[device] for device in self.plan.used_devices]

    @cached_property
    def sizes(self) -> list[int]:
        """A third of the positions on each line: its backwards."""
        return [sum(self.numbers.counts[stage] for stage in stages) for stages in self.hosted]

    @cached_property
    def firsts(self) -> list[dict[int, int]]:
        """By line and stage: the position of the stage's first backward."""
        counts = self.numbers.counts
        sums = (accumulate((counts[stage] for stage in stages), initial=0) for stages in self.hosted)
        return [dict(zip(stages, some, strict=False)) for stages, some in zip(self.hosted, sums, strict=True)]

    @cached_property
    def seconds(self) -> list[tuple[tuple[float, ...], ...]]:
        """By line and stage: seconds of a task by kind, in the order of `KINDS`."""
        found: list[tuple[tuple[float, ...], ...]] = []
        for device, stages in zip(self.plan.used_devices, self.hosted, strict=True):
            each = [self._task_seconds(stage, device) for stage in stages]
            found.append(tuple(each))
        return found

    def _task_seconds(self, number: int, device: int) -> tuple[float, ...]:
        stage = self.plan.stages[number]
        samples = stage.micro_batch / stage.degree
        seconds = self.plan.cost_model.task_seconds(stage.ops, device, samples, stage.recompute)
        return tuple(seconds_of(kind, seconds, self.plan.costs) for kind in KINDS)

    @cached_property
    def begins(self) -> list[float]:
        """When each line may start: once the weights that are sharded have been gathered, stage after stage."""
        free = dict.fromkeys(self.plan.used_devices, 0.0)
        for number, stage in enumerate(self.plan.stages):
            if seconds := self.plan.gather_seconds(number):
                begin = max(free[device] for device in stage.devices)
                free |= dict.fromkeys(stage.devices, begin + seconds)
        return list(free.values())

    def lines_of(self, stage: int) -> list[Line]:
        """Return the lines that host a stage."""
        return [line for line, stages in enumerate(self.hosted) if stage in stages]

    @cached_property
    def updates(self) -> list[tuple[tuple[float, float], ...]]:
        """By line and stage, if the schedule is of a segment: the seconds to sum the gradients and to step."""
        if not self.schedule.updates:
            return [()] * len(self.hosted)
        each = [(self.plan.reduce_seconds(at), self.plan.optimizer_seconds(at)) for at in range(len(self.plan.stages))]
        return [tuple(each[stage] for stage in stages) for stages in self.hosted]

    @cached_property
    def places(self) -> list[tuple[Line, int]]:
        """The line and the position of each task number."""
        line_of = {device: line for line, device in enumerate(self.plan.used_devices)}
        counts = self.numbers.counts
        third = [
            (line_of[device], self.firsts[line_of[device]][number] + index)
            for number, stage in enumerate(self.plan.stages)
            for device in stage.devices
            for index in range(counts[number])
        ]
        return third + [(line, position + self.sizes[line]) for line, position in third]

    @cached_property
    def channels(self) -> dict[tuple[Line, Line], list[Message]]:
        """The messages from one line to another. Those of one task are in the order in which it sends them."""
        found: dict[tuple[Line, Line], list[Message]] = {}
        plan, places, used, sent = self.plan, self.places, self.plan.used_devices, _Sent()
        for flow in self.numbers.flows(None):
            (source, start), (target, end) = places[flow.source], places[flow.target]
            if source == target:
                continue  # The order of the tasks on the device is enough.
            without = plan.joint_edges.without(flow.edge, backward=flow.backward)
            count = plan.sent_bytes(flow.edge, without) * len(flow.samples)
            seconds, carriers = 0.0, tuple[int, ...]()
            if count or not without:
                seconds = plan.cost_model.transfer_seconds(count, used[source], used[target])
            else:
                carriers = () if flow.backward else sent.carriers(flow, without, target)
                if not carriers:
                    continue
            found.setdefault((source, target), []).append(Message(start, end, seconds, carriers))
            if plan.joint_edges.outputs:
                sent.add(flow, target, carries=not carriers)
        return found

    @cached_property
    def alike(self) -> list[Line]:
        """By line: the first one with the same tasks at the same times.

        Colour refinement: lines start with the same colour if they take equal times for equal lists of tasks. Lines
        that receive other messages, or the same messages from other colours, then get different colours, until nothing
        changes. In a segment, a line also receives the gradients of its stage's replicas. Lines of the same colour have
        equal times.
        """
        lists = [
            tuple((task.kind, self.firsts[line][task.stage]) for task in self.schedule.devices[device])
            for line, device in enumerate(self.plan.used_devices)
        ]
        colours = first_equal(list(zip(self.seconds, self.begins, self.sizes, self.updates, lists, strict=True)))
        kinds = first_equal([tuple(messages) for messages in self.channels.values()])
        arriving: list[list[tuple[Line, int]]] = [[] for _ in colours]
        for (source, target), kind in zip(self.channels, kinds, strict=True):
            arriving[target].append((source, kind))
        for stage in range(len(self.plan.stages)) if self.schedule.updates else ():
            for line in (lines := self.lines_of(stage)):  # Each waits for the gradients of all.
                arriving[line] += [(other, -1 - self.hosted[line].index(stage)) for other in lines]
        while True:
            refined = first_equal([(colours[line], _coloured(some, colours)) for line, some in enumerate(arriving)])
            if refined == colours:
                return colours
            colours = refined


def _coloured(arriving: Sequence[tuple[Line, int]], colours: Sequence[Line]) -> frozenset[tuple[Line, int]]:
    return frozenset((colours[source], kind) for source, kind in arriving)
