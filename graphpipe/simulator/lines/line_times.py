"""When the tasks of every device end, in the order of a schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpipe.simulator.lines.copy_lanes import CopyLanes
from graphpipe.simulator.lines.line_tables import LineTables, Moment, Sending, Sum
from graphpipe.simulator.lines.repeating_period import Line, Period


@dataclass(frozen=True, slots=True)
class LineTimes:
    """The times of all lines. Lines with equal times share them."""

    ends: list[list[float]]
    """When each task ends, by line, in the order of its schedule."""
    copies: list[CopyLanes | None]
    """The copies of each line; None where nothing is offloaded."""
    step_seconds: float | None = None
    """When the step ends, if messages and sums of gradients share ports; None: it follows from the ends of tasks."""


def line_times(period: Period) -> LineTimes | None:
    """Return when the tasks and the copies of each line happen; None if tasks wait for each other forever.

    A device does its tasks in order, each as soon as its messages are there. A channel carries messages in the order of
    the tasks of its source. In a segment, replicas sum their gradients before each update, and nothing is offloaded.
    Lines with equal times are computed once.
    """
    tables = LineTables.of(period)
    clock, heads = _Clock(tables, period.begins), [*tables.tasks]
    while heads:
        heads += clock.advance(heads.pop())
    if any(len(clock.ends[line]) < len(tasks) for line, tasks in tables.tasks.items()):
        return None
    return LineTimes([clock.ends[line] for line in period.alike], [tables.copies.get(line) for line in period.alike])


@dataclass(slots=True)
class _Clock:
    tables: LineTables
    begins: Sequence[float]
    """When each line may start."""
    ends: dict[Line, list[float]] = field(init=False)
    channels: list[float] = field(init=False)
    """When each channel is free."""
    held: dict[Line, Moment] = field(default_factory=dict[Line, Moment])
    """The moment whose messages a line waits for."""

    def __post_init__(self) -> None:
        self.ends = {line: [] for line in self.tables.tasks}
        self.channels = [0.0] * len(self.tables.channels)

    def advance(self, line: Line) -> list[Line]:
        """Do the tasks of a line until one lacks a message. Return the lines that can go on because of them."""
        tables, ends = self.tables, self.ends[line]
        sends, missing, ready, sums = tables.sends[line], tables.missing[line], tables.ready[line], tables.sums
        size, freed, copies, tasks = len(sends), list[Line](), tables.copies.get(line), tables.tasks[line]
        end = ends[-1] if ends else self.begins[line]
        for at in range(len(ends), len(tasks)):
            moment, seconds = tasks[at]
            if moment < 0:
                freed += self._arrive(line, sums[~moment], end)
                if sums[~moment].arrived < len(sums[~moment].lines):
                    break
                end = sums[~moment].end + seconds
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

    def _arrive(self, line: Line, gathered: Sum, end: float) -> list[Line]:
        """Note that a line has its share of a sum. Return the lines that can go on because of it."""
        if gathered.arrived == len(gathered.lines):
            return []  # The line has waited for the others.
        gathered.arrived += 1
        gathered.end = max(gathered.end, end)
        if gathered.arrived < len(gathered.lines):
            return []
        gathered.end += gathered.seconds
        return [other for other in gathered.lines if other != line]

    def _send(self, sending: Sending, turn: int, end: float) -> bool:
        """Send the messages of a task on one channel. Return whether the target waits for one of them."""
        target = sending.target
        missing, ready, held = self.tables.missing[target], self.tables.ready[target], self.held.get(target)
        now, first, freed = max(end, self.channels[sending.channel]), turn * len(self.tables.sends[target]), False
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
