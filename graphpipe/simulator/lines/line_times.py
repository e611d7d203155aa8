"""When the tasks of every device end, in the order of a schedule."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphpipe.simulator.lines.copy_lanes import Copy, CopyLanes
from graphpipe.simulator.lines.repeating_period import KINDS, Line, Message, Period

_THIRDS = {"B": 0, "I": 0, "F": 1, "W": 2}

Moment = int
"""A position in the period plus its size times the number of the period; of an update: the complement of the number of
its sum."""


@dataclass(frozen=True, slots=True)
class _Sending:
    # The messages of one task on one channel.
    channel: int
    target: Line
    messages: list[Message]


@dataclass(slots=True)
class _Sum:
    # The gradients of a mini-batch, summed over the lines of a stage, which then update their weights.
    lines: tuple[Line, ...]
    seconds: float
    arrived: int = 0
    end: float = 0.0
    """When the sum is there, once all lines have arrived."""


@dataclass(frozen=True, slots=True)
class LineTimes:
    """The times of all lines. Lines with equal times share them."""

    ends: list[list[float]]
    """When each task ends, by line, in the order of its schedule."""
    copies: list[CopyLanes | None]
    """The copies of each line; None where nothing is offloaded."""


def line_times(period: Period) -> LineTimes | None:
    """Return when the tasks and the copies of each line happen; None if tasks wait for each other forever.

    A device does its tasks in order, each as soon as its messages are there. A channel carries messages in the order of
    the tasks of its source. In a segment, replicas sum their gradients before each update, and nothing is offloaded.
    Lines with equal times are computed once.
    """
    clock = _Clock.of(period)
    heads = [*clock.tasks]
    while heads:
        heads += clock.advance(heads.pop())
    if any(len(clock.ends[line]) < len(tasks) for line, tasks in clock.tasks.items()):
        return None
    return LineTimes([clock.ends[line] for line in period.alike], [clock.copies.get(line) for line in period.alike])


@dataclass(frozen=True, slots=True)
class _Clock:
    # By line.
    tasks: dict[Line, list[tuple[Moment, float]]]
    """The moments and seconds of each line's tasks, in order."""
    sends: dict[Line, list[list[_Sending]]]
    """What the tasks of a period send, by position."""
    missing: dict[Line, list[int]]
    """How many messages each moment's task still waits for."""
    ready: dict[Line, list[float]]
    """When the latest message so far arrives for each moment."""
    ends: dict[Line, list[float]]
    begins: Sequence[float]
    channels: list[float]
    """When each channel is free."""
    held: dict[Line, Moment]
    """The moment whose messages a line waits for."""
    sums: list[_Sum]
    """The sums of a segment."""
    copies: dict[Line, CopyLanes]
    """The copies of the lines that offload."""

    @staticmethod
    def of(period: Period) -> "_Clock":
        lines = sorted(set(period.alike))
        turns = period.mini_batches * period.plan.batch_size // period.numbers.batch_size
        sends = {line: [list[_Sending]() for _ in range(3 * period.sizes[line])] for line in lines}
        waits = {line: [0] * (3 * period.sizes[line]) for line in lines}
        count = 0
        for source, target, messages in _channels(period):
            for message in messages:
                waits[target][message.target] += 1
                some = sends[source][message.source]
                if not some or some[-1].channel != count:
                    some.append(_Sending(count, target, []))
                some[-1].messages.append(message)
            count += 1
        sums = _Sums(period)
        return _Clock(
            tasks={line: list(_moments(period, line, sums)) for line in lines},
            sends=sends,
            missing={line: some * turns for line, some in waits.items()},
            ready={line: [0.0] * (len(some) * turns) for line, some in waits.items()},
            ends={line: [] for line in lines},
            begins=period.begins,
            channels=[0.0] * count,
            held={},
            sums=sums.all,
            copies=_copies(period, lines),
        )

    def advance(self, line: Line) -> list[Line]:
        """Do the tasks of a line until one lacks a message. Return the lines that can go on because of them."""
        sends, missing, ready, ends = self.sends[line], self.missing[line], self.ready[line], self.ends[line]
        size, freed, copies, tasks = len(sends), list[Line](), self.copies.get(line), self.tasks[line]
        end = ends[-1] if ends else self.begins[line]
        for at in range(len(ends), len(tasks)):
            moment, seconds = tasks[at]
            if moment < 0:
                freed += self._arrive(line, self.sums[~moment], end)
                if self.sums[~moment].arrived < len(self.sums[~moment].lines):
                    break
                end = self.sums[~moment].end + seconds
                ends.append(end)
                continue
            if missing[moment]:
                self.held[line] = moment
                break
            free = end
            if ready[moment] > end:
                end = ready[moment]
            if copies is not None:
                end = copies.begin(free, end)
            end += seconds
            ends.append(end)
            if copies is not None:
                copies.end(end)
            turn, position = divmod(moment, size)
            for sending in sends[position]:
                if self._send(sending, turn, end):
                    freed.append(sending.target)
        return freed

    def _arrive(self, line: Line, gathered: _Sum, end: float) -> list[Line]:
        """Note that a line has its share of a sum. Return the lines that can go on because of it."""
        if gathered.arrived == len(gathered.lines):
            return []  # The line has waited for the others.
        gathered.arrived += 1
        gathered.end = max(gathered.end, end)
        if gathered.arrived < len(gathered.lines):
            return []
        gathered.end += gathered.seconds
        return [other for other in gathered.lines if other != line]

    def _send(self, sending: _Sending, turn: int, end: float) -> bool:
        """Send the messages of a task on one channel. Return whether the target waits for one of them."""
        target = sending.target
        missing, ready, held = self.missing[target], self.ready[target], self.held.get(target)
        now, first, freed = max(end, self.channels[sending.channel]), turn * len(self.sends[target]), False
        arrivals: list[float] = []
        for _, position, seconds, carriers in sending.messages:
            arrived = max([arrivals[other] for other in carriers]) if carriers else now + seconds
            now = now if carriers else arrived
            arrivals.append(arrived)
            moment = first + position
            if arrived > ready[moment]:
                ready[moment] = arrived
            missing[moment] -= 1
            freed = freed or (moment == held and not missing[moment])
        self.channels[sending.channel] = now
        if freed:
            del self.held[target]
        return freed


def _copies(period: Period, lines: Iterable[Line]) -> dict[Line, CopyLanes]:
    plan, lanes = period.plan, dict[Line, CopyLanes]()
    for line in lines:
        pairs = enumerate(zip(period.hosted[line], period.copies[line], strict=True))
        copies = {stage: Copy(place, seconds) for place, (stage, seconds) in pairs if seconds is not None}
        if copies:
            lanes[line] = CopyLanes.of(plan, period.schedule.devices[plan.used_devices[line]], copies)
    return lanes


def _channels(period: Period) -> Iterable[tuple[Line, Line, tuple[Message, ...]]]:
    """Return the channels to the first line of each group of equal lines, from the first line of each group."""
    alike, channels = period.alike, period.channels.items()
    return dict.fromkeys((alike[source], at, messages) for (source, at), messages in channels if alike[at] == at)


class _Sums:
    """Numbers the sums of gradients of a segment. Equal lines of different stages share a sum."""

    def __init__(self, period: Period) -> None:
        self.all: list[_Sum] = []
        self._period = period
        self._numbers: dict[tuple[int, tuple[Line, ...], int], int] = {}

    def number(self, line: Line, stage: int, mini_batch: int) -> int:
        """Return the number of the sum that an update of a line waits for."""
        period, lines = self._period, self._period.lines_of(stage)
        distinct = tuple(sorted({period.alike[line] for line in lines}))
        key = period.hosted[line].index(stage), distinct, mini_batch
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(_Sum(distinct, period.plan.reduce_seconds(stage)))
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
