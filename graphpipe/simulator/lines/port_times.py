"""When the tasks of every device end where messages share ports, so that one may slow down another."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from graphpipe.simulator.events.port_queue import PortQueue, Uses, both_ways
from graphpipe.simulator.lines.line_tables import LineTables, Moment, Sending
from graphpipe.simulator.lines.line_times import LineTimes
from graphpipe.simulator.lines.repeating_period import Line, Period


class Reduction(NamedTuple):
    """A sum of gradients at the end of a step."""

    last: Mapping[Line, int]
    """The position of the task on each of its lines after which the line's share is there."""
    seconds: float
    level: str
    """The level at which it takes ports; empty if it does not."""
    tied: int = -1
    """The number of the gradients that stages share; -1 for those of replicas."""


def port_times(period: Period, reductions: Sequence[Reduction] = ()) -> LineTimes | None:
    """Return what `line_times` does, for a plan whose messages share ports; None if tasks wait forever.

    Everything happens in order of time, because what shares a port depends on what has begun. Each sum of gradients
    starts once its lines have their shares and have ended the sums before it.

    Args:
        period: of the plan and its schedule.
        reductions: at the end of the step, in order, so that a device does one after the other. In a segment, sums are
            those before its updates.
    """
    tables = LineTables.of(period)
    clock = _PortClock(period, tables, _Reductions.of(period, reductions))
    clock.run()
    if any(len(clock.ends[line]) < len(tasks) for line, tasks in tables.tasks.items()):
        return None
    return LineTimes(
        ends=[clock.ends[line] for line in period.alike],
        copies=[tables.copies.get(line) for line in period.alike],
        step_seconds=None if period.is_segment else clock.step_seconds(),
    )


@dataclass(slots=True, eq=False)
class _Reduction:
    lines: tuple[Line, ...]
    seconds: float
    uses: Uses
    missing: int = 0
    """The shares, and the sums before it on its lines, that are not there yet."""
    then: list["_Reduction"] = field(default_factory=list["_Reduction"])
    """The next sum on each of its lines."""


@dataclass(frozen=True, slots=True)
class _Reductions:
    # The sums at the end of a step, without those of equal lines.
    after: dict[tuple[Line, int], list[_Reduction]]
    """The sums that wait for a task, by line and position."""

    @staticmethod
    def of(period: Period, reductions: Sequence[Reduction]) -> "_Reductions":
        known, after = dict[object, _Reduction](), dict[tuple[Line, int], list[_Reduction]]()
        before = dict[Line, _Reduction]()
        for last, seconds, level, tied in reductions:
            shares = tuple(sorted({(period.alike[line], position) for line, position in last.items()}))
            lines = tuple(line for line, _ in shares)
            if (one := known.get((shares, tied))) is None:
                uses = both_ways(lines, level) if level else ()
                one = known[shares, tied] = _Reduction(lines, seconds, uses, len(shares))
                for share in shares:
                    after.setdefault(share, []).append(one)
            for line in last:
                if period.alike[line] != line:
                    continue
                if line in before:
                    before[line].then.append(one)
                    one.missing += 1
                before[line] = one
        return _Reductions(after)


class _Channel(NamedTuple):
    # The messages that wait on a channel, the first of which is on its way.
    number: int
    waiting: "deque[_Message]"


class _Message(NamedTuple):
    seconds: float
    moments: list[Moment]
    """What waits for it at the target."""


class _SumEnd(NamedTuple):
    number: int
    """The sum of a segment that has ended."""


_Item = Line | _Channel | _Reduction | _SumEnd
"""What ends: a task of a line, the first message of a channel, or a sum."""


@dataclass(slots=True)
class _PortClock:
    period: Period
    tables: LineTables
    reductions: _Reductions
    queue: PortQueue[_Item] = field(default_factory=PortQueue[_Item])
    ends: dict[Line, list[float]] = field(init=False)
    channels: list[_Channel] = field(init=False)
    held: dict[Line, Moment] = field(default_factory=dict[Line, Moment])
    """The moment whose messages a line waits for."""
    summed: dict[Line, float] = field(default_factory=dict[Line, float])
    """When each line has ended its last sum so far."""

    def __post_init__(self) -> None:
        self.ends = {line: [] for line in self.tables.tasks}
        self.channels = [_Channel(number, deque()) for number in range(len(self.tables.channels))]

    def run(self) -> None:
        """Let everything happen that can happen."""
        for line in self.tables.tasks:
            self._start(line)
        queue = self.queue
        while queue.waits:
            ended = queue.advance()
            if ended is None:
                continue
            if isinstance(ended, int):
                self._end_task(ended)
            elif isinstance(ended, _Channel):
                self._end_message(ended)
            elif isinstance(ended, _SumEnd):
                self._end_sum(ended.number)
            else:
                self._end_reduction(ended)

    def step_seconds(self) -> float:
        """Return when all lines have updated their weights."""
        plan, hosted = self.period.plan, self.period.hosted
        return max(
            max(self.summed.get(line, 0.0), own[-1]) + sum(map(plan.optimizer_seconds, hosted[line]))
            for line, own in self.ends.items()
        )

    def _start(self, line: Line) -> None:
        """Begin the next task of a line, if there is one that has all it waits for."""
        tables, ends = self.tables, self.ends[line]
        if len(ends) == len(tables.tasks[line]):
            return
        moment, seconds = tables.tasks[line][len(ends)]
        if moment < 0:
            self._arrive(~moment)
            return
        if tables.missing[line][moment]:
            self.held[line] = moment
            return
        free = ends[-1] if ends else self.period.begins[line]
        begin = max(self.queue.now, free)
        if (copies := tables.copies.get(line)) is not None:
            begin = copies.begin(free, begin)
        self.queue.begin(begin, line, seconds)

    def _end_task(self, line: Line) -> None:
        tables, now, at = self.tables, self.queue.now, len(self.ends[line])
        moment, _ = tables.tasks[line][at]
        self.ends[line].append(now)
        if moment >= 0:
            if (copies := tables.copies.get(line)) is not None:
                copies.end(now)
            turn, position = divmod(moment, len(tables.sends[line]))
            for sending in tables.sends[line][position]:
                self._send(sending, turn)
        for reduction in self.reductions.after.get((line, at), ()):
            self._count(reduction)
        self._start(line)

    def _send(self, sending: Sending, turn: int) -> None:
        first = turn * len(self.tables.sends[sending.target])
        messages: list[_Message] = []
        sent: list[_Message] = []
        for _, position, seconds, carriers in sending.messages:
            if carriers:  # What others carry arrives with the last of them.
                message = messages[max(carriers)]
                message.moments.append(first + position)
            else:
                message = _Message(seconds, [first + position])
                sent.append(message)
            messages.append(message)
        channel = self.channels[sending.channel]
        channel.waiting.extend(sent)
        if len(channel.waiting) == len(sent):
            self._go(channel)

    def _go(self, channel: _Channel) -> None:
        """Let the first message of a channel go."""
        uses, latency = self.tables.channels[channel.number][-2:]
        seconds = channel.waiting[0].seconds
        self.queue.begin(self.queue.now, channel, seconds, uses, latency if seconds else 0.0)

    def _end_message(self, channel: _Channel) -> None:
        target = self.tables.channels[channel.number].target
        missing, held = self.tables.missing[target], self.held.get(target)
        for moment in channel.waiting.popleft().moments:
            missing[moment] -= 1
            if moment == held and not missing[moment]:
                del self.held[target]
                self._start(target)
        if channel.waiting:
            self._go(channel)

    def _arrive(self, number: int) -> None:
        """Note that one more line has its share of a sum."""
        gathered = self.tables.sums[number]
        gathered.arrived += 1
        if gathered.arrived == len(gathered.lines):
            plan = self.period.plan
            level = plan.cluster.ring_port(plan.stages[gathered.stage].devices)
            uses = both_ways(gathered.lines, level) if level else ()
            self.queue.begin(self.queue.now, _SumEnd(number), gathered.seconds, uses)

    def _end_sum(self, number: int) -> None:
        for line in self.tables.sums[number].lines:
            _, seconds = self.tables.tasks[line][len(self.ends[line])]
            self.queue.begin(self.queue.now, line, seconds)

    def _end_reduction(self, reduction: _Reduction) -> None:
        self.summed |= dict.fromkeys(reduction.lines, self.queue.now)
        for following in reduction.then:
            self._count(following)

    def _count(self, reduction: _Reduction) -> None:
        reduction.missing -= 1
        if not reduction.missing:
            self.queue.begin(self.queue.now, reduction, reduction.seconds, reduction.uses)
