"""What the lines of a plan do in order, and what their tasks send and wait for."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from graphpipe.simulator.events.port_queue import Port, Uses
from graphpipe.simulator.lines.copy_lanes import Copy, CopyLanes
from graphpipe.simulator.lines.repeating_period import KINDS, Line, Message, Period

_THIRDS = {"B": 0, "I": 0, "F": 1, "W": 2}

Moment = int
"""A position in the period plus its size times the number of the period; of an update: the complement of the number of
its sum."""


class Channel(NamedTuple):
    """The messages from one line to another, which stand for those of equal lines."""

    source: Line
    target: Line
    messages: tuple[Message, ...]
    uses: Uses
    """The ports that its messages share, and how many equal channels there are in each."""
    latency: float
    """Seconds of a message before it takes its ports."""


@dataclass(frozen=True, slots=True)
class Sending:
    """The messages of one task on one channel."""

    channel: int
    target: Line
    messages: list[Message]


@dataclass(slots=True)
class Sum:
    """The gradients of a mini-batch, summed over the lines of a stage, which then update their weights."""

    stage: int
    lines: tuple[Line, ...]
    seconds: float
    arrived: int = 0
    end: float = 0.0
    """When the sum is there, once all lines have arrived."""


@dataclass(frozen=True, slots=True)
class LineTables:
    """Tables by line, without those lines that do the same at the same times as another one."""

    tasks: dict[Line, list[tuple[Moment, float]]]
    """The moments and seconds of each line's tasks, in order."""
    channels: list[Channel]
    sends: dict[Line, list[list[Sending]]]
    """What the tasks of a period send, by position."""
    missing: dict[Line, list[int]]
    """How many messages each moment's task still waits for."""
    ready: dict[Line, list[float]]
    """When the latest message so far arrives for each moment."""
    sums: list[Sum]
    """The sums of a segment."""
    copies: dict[Line, CopyLanes]
    """The copies of the lines that offload."""

    @staticmethod
    def of(period: Period) -> "LineTables":
        """Return the tables before anything has happened."""
        lines = sorted(set(period.alike))
        turns = period.mini_batches * period.plan.batch_size // period.numbers.batch_size
        sends = {line: [list[Sending]() for _ in range(3 * period.sizes[line])] for line in lines}
        waits = {line: [0] * (3 * period.sizes[line]) for line in lines}
        channels = _channels(period)
        for number, channel in enumerate(channels):
            for message in channel.messages:
                waits[channel.target][message.target] += 1
                some = sends[channel.source][message.source]
                if not some or some[-1].channel != number:
                    some.append(Sending(number, channel.target, []))
                some[-1].messages.append(message)
        sums = _Sums(period)
        return LineTables(
            tasks={line: list(_moments(period, line, sums)) for line in lines},
            channels=channels,
            sends=sends,
            missing={line: some * turns for line, some in waits.items()},
            ready={line: [0.0] * (len(some) * turns) for line, some in waits.items()},
            sums=sums.all,
            copies=_copies(period, lines),
        )


_Equal = tuple[Line, Line, int, str]
"""Channels are equal if their lines are, and have equal messages at the same level."""


def _channels(period: Period) -> list[Channel]:
    """Return the channels to the first line of each group of equal lines, from the first line of each group."""
    first = dict[_Equal, tuple[Line, Line]]()
    arriving, leaving = Counter[_Equal](), Counter[_Equal]()
    for (source, target), messages in period.channels.items():
        here, there = period.alike[source], period.alike[target]
        equal = here, there, id(messages), period.ports.get((source, target), "")  # Equal messages share one tuple.
        first.setdefault(equal, (source, target))
        arriving[equal] += target == there
        leaving[equal] += source == here
    return [_channel(period, ends, equal, leaving[equal], arriving[equal]) for equal, ends in first.items()]


def _channel(period: Period, ends: tuple[Line, Line], equal: _Equal, leaving: int, arriving: int) -> Channel:
    source, target, _, level = equal
    uses, latency = tuple[tuple[Port, int], ...](), 0.0
    if level:
        uses = ((Port(source, level, True), leaving), (Port(target, level, False), arriving))
        link = period.plan.cluster.link(*(period.plan.used_devices[line] for line in ends))
        latency = link.latency_seconds if link is not None else 0.0
    return Channel(source, target, period.channels[ends], uses, latency)


def _copies(period: Period, lines: Iterable[Line]) -> dict[Line, CopyLanes]:
    plan, lanes = period.plan, dict[Line, CopyLanes]()
    for line in lines:
        pairs = enumerate(zip(period.hosted[line], period.copies[line], strict=True))
        copies = {stage: Copy(place, seconds) for place, (stage, seconds) in pairs if seconds is not None}
        if copies:
            lanes[line] = CopyLanes.of(plan, period.schedule.devices[plan.used_devices[line]], copies)
    return lanes


class _Sums:
    """Numbers the sums of gradients of a segment. Equal lines of different stages share a sum."""

    def __init__(self, period: Period) -> None:
        self.all: list[Sum] = []
        self._period = period
        self._numbers: dict[tuple[int, tuple[Line, ...], int], int] = {}

    def number(self, line: Line, stage: int, mini_batch: int) -> int:
        """Return the number of the sum that an update of a line waits for."""
        period, lines = self._period, self._period.lines_of(stage)
        distinct = tuple(sorted({period.alike[line] for line in lines}))
        key = period.hosted[line].index(stage), distinct, mini_batch
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(Sum(stage, distinct, period.plan.reduce_seconds(stage)))
        return self._numbers[key]


def _moments(period: Period, line: Line, sums: _Sums) -> Iterator[tuple[Moment, float]]:
    """Yield the moments of the tasks of a line in order, with the seconds of each."""
    third, firsts, counts = period.sizes[line], period.firsts[line], period.numbers.counts
    places = {
        (kind, stage): (first + _THIRDS[kind] * third, counts[stage], task_seconds)
        for (stage, first), seconds in zip(firsts.items(), period.seconds[line], strict=True)
        for kind, task_seconds in zip(KINDS, seconds, strict=True)
    }
    for task in period.schedule.devices[period.plan.used_devices[line]]:
        if task.kind == "U":
            yield ~sums.number(line, task.stage, task.micro_batch), period.plan.optimizer_seconds(task.stage)
            continue
        first, count, seconds = places[task.kind, task.stage]
        turn, index = divmod(task.micro_batch, count)
        yield 3 * third * turn + first + index, seconds
