"""When the tasks of every device end, in the order of a schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from graphpipe.simulator.repeating_period import KINDS, Line, Message, Period

_THIRDS = {"B": 0, "I": 0, "F": 1, "W": 2}


@dataclass(frozen=True, slots=True)
class _Sending:
    # The messages of one task on one channel.
    channel: int
    target: Line
    messages: list[Message]


def line_times(period: Period) -> list[list[float]] | None:
    """Return the end of each task by line, in the order of its schedule; None if tasks wait for each other forever.

    A device does its tasks in order, each as soon as its messages are there. A channel carries messages in the order of
    the tasks of its source. Lines with equal times are computed once, and share a list.
    """
    clock = _Clock.of(period)
    heads = [*clock.tasks]
    while heads:
        heads += clock.advance(heads.pop())
    if any(len(clock.ends[line]) < len(tasks) for line, tasks in clock.tasks.items()):
        return None
    return [clock.ends[line] for line in period.alike]


@dataclass(frozen=True, slots=True)
class _Clock:
    # By line. A moment is a position in the period plus its size times the number of the period.
    tasks: dict[Line, list[tuple[int, float]]]
    """The moments and seconds of its tasks, in order."""
    sends: dict[Line, list[list[_Sending]]]
    """What the tasks of a period send, by position."""
    missing: dict[Line, list[int]]
    """By moment: how many messages the task still waits for."""
    ready: dict[Line, list[float]]
    """By moment: when the latest of the messages so far arrives."""
    ends: dict[Line, list[float]]
    begins: Sequence[float]
    channels: list[float]
    """When each is free."""
    held: dict[Line, int]
    """The moment whose messages a line waits for."""

    @staticmethod
    def of(period: Period) -> "_Clock":
        lines = sorted(set(period.alike))
        turns = period.plan.batch_size // period.numbers.batch_size
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
        return _Clock(
            tasks={line: list(_moments(period, line)) for line in lines},
            sends=sends,
            missing={line: some * turns for line, some in waits.items()},
            ready={line: [0.0] * (len(some) * turns) for line, some in waits.items()},
            ends={line: [] for line in lines},
            begins=period.begins,
            channels=[0.0] * count,
            held={},
        )

    def advance(self, line: Line) -> list[Line]:
        """Do the tasks of a line until one lacks a message. Return the lines that can go on because of them."""
        sends, missing, ready, ends = self.sends[line], self.missing[line], self.ready[line], self.ends[line]
        size, freed = len(sends), list[Line]()
        end = ends[-1] if ends else self.begins[line]
        for moment, seconds in islice(self.tasks[line], len(ends), None):
            if missing[moment]:
                self.held[line] = moment
                break
            if ready[moment] > end:
                end = ready[moment]
            end += seconds
            ends.append(end)
            turn, position = divmod(moment, size)
            for sending in sends[position]:
                if self._send(sending, turn, end):
                    freed.append(sending.target)
        return freed

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


def _channels(period: Period) -> Iterator[tuple[Line, Line, list[Message]]]:
    """Yield the channels to the first line of each group of equal lines, from the first line of each group."""
    alike, known = period.alike, set[tuple[Line, Line, tuple[Message, ...]]]()
    for (source, target), messages in period.channels.items():
        key = alike[source], target, tuple(messages)
        if alike[target] == target and key not in known:
            known.add(key)
            yield alike[source], target, messages


def _moments(period: Period, line: Line) -> Iterator[tuple[int, float]]:
    """Yield the moments of the tasks of a line in order, with the seconds of each."""
    third, firsts, counts = period.sizes[line], period.firsts[line], period.numbers.counts
    places = {
        (kind, stage): (first + _THIRDS[kind] * third, counts[stage], each)
        for (stage, first), seconds in zip(firsts.items(), period.seconds[line], strict=True)
        for kind, each in zip(KINDS, seconds, strict=True)
    }
    for task in period.schedule.devices[period.plan.used_devices[line]]:
        first, count, seconds = places[task.kind, task.stage]
        turn, index = divmod(task.micro_batch, count)
        yield 3 * third * turn + first + index, seconds
