"""The repeating part of a training step, and which of its devices have equal work at equal times."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from math import lcm
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.plans.device_memory import stage_memory
from graphpipe.schedule import Schedule
from graphpipe.schedule.list_scheduling.plan_work import hosted_stages
from graphpipe.schedule.schedule import Kind
from graphpipe.schedule.task_numbers import Passage, TaskNumbers, channels_of, equal_devices, samples_along

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


# No slots: the derived tables below are cached properties.
@dataclass(frozen=True)
class Period:
    """The least number of samples that all micro-batch sizes divide. Dependencies repeat with every such period.

    The tasks of a device in one period have positions: all its backwards, stage by stage, then all its forwards, then
    all its weight gradients.
    """

    plan: Plan
    schedule: Schedule
    """The schedule of one mini-batch, or of a segment."""

    @cached_property
    def is_segment(self) -> bool:
        """Whether updates are among the tasks of the schedule."""
        return self.schedule.updates

    @cached_property
    def mini_batches(self) -> int:
        """Number of mini-batches of the schedule."""
        return self.schedule.mini_batches if self.is_segment else 1

    @cached_property
    def numbers(self) -> TaskNumbers:
        """Numbers of the tasks of one period."""
        return TaskNumbers(self.plan, lcm(*(stage.micro_batch for stage in self.plan.stages)))

    @cached_property
    def hosted(self) -> list[tuple[int, ...]]:
        """The stages on each line."""
        stages = hosted_stages(self.plan)
        return [stages[device] for device in self.plan.used_devices]

    @cached_property
    def sizes(self) -> list[int]:
        """A third of the positions on each line: its backwards."""
        return [sum(self.numbers.counts[stage] for stage in stages) for stages in self.hosted]

    @cached_property
    def firsts(self) -> list[dict[int, int]]:
        """The position of the first backward of each stage, by line and stage."""
        counts = self.numbers.counts
        sums = (accumulate((counts[stage] for stage in stages), initial=0) for stages in self.hosted)
        return [dict(zip(stages, some, strict=False)) for stages, some in zip(self.hosted, sums, strict=True)]

    @cached_property
    def seconds(self) -> list[tuple[tuple[float, ...], ...]]:
        """Seconds of a task by line, stage and kind, in the order of `KINDS`."""
        devices = self.plan.cluster.devices
        known: dict[tuple[str, tuple[int, ...]], tuple[tuple[float, ...], ...]] = {}
        keys = [(devices[device].type, on) for device, on in zip(self.plan.used_devices, self.hosted, strict=True)]
        for device, key in zip(self.plan.used_devices, keys, strict=True):
            if key not in known:
                known[key] = tuple([self._task_seconds(stage, device) for stage in key[1]])
        return [known[key] for key in keys]

    def _task_seconds(self, number: int, device: int) -> tuple[float, ...]:
        seconds = self.plan.task_seconds(number, device)
        return tuple(seconds.of(kind, self.plan.costs.task_overhead_seconds) for kind in KINDS)

    @cached_property
    def copies(self) -> list[tuple[float | None, ...]]:
        """Seconds of a copy of what a stage offloads, by line and stage; None if it offloads nothing."""
        if not any(stage.offload for stage in self.plan.stages):
            return [(None,) * len(stages) for stages in self.hosted]
        pairs = zip(self.plan.used_devices, self.hosted, strict=True)
        return [tuple([self._copy_seconds(stage, device) for stage in stages]) for device, stages in pairs]

    def _copy_seconds(self, number: int, device: int) -> float | None:
        stage, costs = self.plan.stages[number], self.plan.cost_model
        count = stage_memory(costs, stage).offloaded * stage.micro_batch / stage.degree
        return costs.copy_seconds(count, device) if stage.offload else None

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
        """Seconds to sum the gradients and to step, by line and stage, if they matter to the tasks."""
        if not self.is_segment and not self.ports:
            return [()] * len(self.hosted)
        own = [(self.plan.reduce_seconds(at), self.plan.optimizer_seconds(at)) for at in range(len(self.plan.stages))]
        return [tuple(own[stage] for stage in stages) for stages in self.hosted]

    @cached_property
    def channels(self) -> dict[tuple[Line, Line], tuple[Message, ...]]:
        """The messages from one line to another. Those of one task are in the order in which it sends them.

        Channels with equal messages share one tuple.
        """
        line_of = {device: line for line, device in enumerate(self.plan.used_devices)}
        known: dict[Hashable, tuple[Message, ...]] = {}
        messages_between: dict[tuple[Line, Line], tuple[Message, ...]] = {}
        for (source, target), passages in channels_of(self.plan, self.numbers.batch_size).items():
            if source == target:
                continue  # The order of the tasks on the device is enough.
            here, there = line_of[source], line_of[target]
            link = self.plan.cluster.link(source, target)
            key = id(link), self.hosted[here], self.hosted[there], *passages
            if key not in known:
                messages = tuple(self._messages(passages, here, there))
                known[key] = known.setdefault(messages, messages)
            if known[key]:
                messages_between[here, there] = known[key]
        return messages_between

    @cached_property
    def ports(self) -> dict[tuple[Line, Line], str]:
        """The levels at which channels share ports; empty if every port has one user, which then does not share it."""
        cluster, used = self.plan.cluster, self.plan.used_devices
        if not cluster.shares_ports:
            return {}
        levels = {ends: level for ends in self.channels if (level := cluster.port(used[ends[0]], used[ends[1]]))}
        leaving = Counter((source, level) for (source, _), level in levels.items())
        arriving = Counter((target, level) for (_, target), level in levels.items())
        line_of = {device: line for line, device in enumerate(used)}
        for devices in self._collectives:
            if level := cluster.ring_port(devices):
                both = [(line_of[device], level) for device in devices]
                leaving.update(both)
                arriving.update(both)
        return levels if max((leaving | arriving).values(), default=0) > 1 else {}

    @property
    def _collectives(self) -> list[tuple[int, ...]]:
        """The devices of every sum of gradients: those of stages with replicas, then those that share parameters."""
        replicas = [stage.devices for stage in self.plan.stages if stage.degree > 1]
        return replicas + [tied.devices for tied in self.plan.tied_gradients]

    def _messages(self, passages: Iterable[Passage], source: Line, target: Line) -> Iterator[Message]:
        plan, used = self.plan, self.plan.used_devices
        joint, order = _Joint({}, {}), bool(plan.joint_edges.outputs)
        for edge, backward, kind in passages:
            starts, ends = self._positions(edge, source, target, backward=backward)
            without = plan.joint_edges.without(edge, backward=backward)
            per_sample = plan.sent_bytes(edge, without, backward=backward)
            for piece, (index, other, samples) in enumerate(
                samples_along(plan, edge, self.numbers.batch_size).pieces[kind]
            ):
                start, end = (starts + other, ends + index) if backward else (starts + index, ends + other)
                seconds, carriers = 0.0, tuple[int, ...]()
                if per_sample or not without:
                    seconds = plan.cost_model.transfer_seconds(per_sample * samples, used[source], used[target])
                else:
                    carriers = () if backward else joint.carriers(without, piece)
                    if not carriers:
                        continue
                yield Message(start, end, seconds, carriers)
                if order:
                    joint.add(start, None if backward or carriers else (edge, piece))

    def _positions(self, edge: int, source: Line, target: Line, *, backward: bool) -> tuple[int, int]:
        """Return the positions of the first tasks of a stage edge on both lines, the one that sends first."""
        ends = self.plan.edges[edge]
        if backward:
            return self.firsts[source][ends.target], self.firsts[target][ends.source]
        return (
            self.sizes[source] + self.firsts[source][ends.source],
            self.sizes[target] + self.firsts[target][ends.target],
        )

    @cached_property
    def alike(self) -> list[Line]:
        """The first line with the same tasks at the same times as each (see `equal_devices`).

        In a segment, a line also receives the gradients of its stage's replicas.
        """
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        numbers: dict[tuple[tuple[Kind, int], ...], int] = {}
        lists: list[int] = []  # A number for each list of tasks, because lists are long.
        for device, stages, firsts in zip(self.plan.used_devices, self.hosted, self.firsts, strict=True):
            tasks = self.schedule.devices[device]  # Devices often share one tuple.
            key = id(tasks), stages
            if key not in known:
                known[key] = numbers.setdefault(tuple([(task.kind, firsts[task.stage]) for task in tasks]), len(known))
            lists.append(known[key])
        # Equal messages share one tuple.
        received: dict[tuple[Line, Line], Hashable] = {pair: id(messages) for pair, messages in self.channels.items()}
        if self.ports:  # A message also waits for others in the ports at its ends, in both directions.
            for pair, level in self.ports.items():
                received[pair] = received[pair], level
            pairs = dict.fromkeys([*received, *((there, here) for here, there in received)])
            received = {
                (here, there): (received.get((here, there)), received.get((there, here))) for here, there in pairs
            }
        for stage in range(len(self.plan.stages)) if self.is_segment or self.ports else ():
            for source, target in product(self.lines_of(stage), repeat=2):  # Each waits for the gradients of all.
                received[source, target] = received.get((source, target)), self.hosted[target].index(stage)
        for number, tied in enumerate(self.plan.tied_gradients) if self.ports else ():
            lines = [line for line, device in enumerate(self.plan.used_devices) if device in tied.devices]
            for source, target in product(lines, repeat=2):
                received[source, target] = received.get((source, target)), "tied", number
        own = zip(self.seconds, self.copies, self.begins, self.sizes, self.updates, lists, strict=True)
        return equal_devices(own, received, counted=bool(self.ports))


@dataclass(frozen=True, slots=True)
class _Joint:
    # The messages of one channel, where some messages carry the values of others.
    order: dict[tuple[int, int], int]
    """Which message of its task carries an edge and piece."""
    count: dict[int, int]
    """How many messages each task has sent."""

    def add(self, source: int, sent: tuple[int, int] | None) -> None:
        order = self.count.get(source, 0)
        self.count[source] = order + 1
        if sent is not None:
            self.order[sent] = order

    def carriers(self, edges: Sequence[int], piece: int) -> tuple[int, ...]:
        # Edges that carry values for each other have equal pieces, because their targets are alike.
        return tuple(self.order[edge, piece] for edge in edges if (edge, piece) in self.order)
