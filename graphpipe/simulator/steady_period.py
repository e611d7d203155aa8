"""The steady period of a plan that does not flush: the seconds from one mini-batch to the next in the long run.

On two equal stages with two micro-batches per mini-batch, both are always busy, so the period is the work of one stage.

    stage 0   F0 F1    B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 ...
    stage 1      F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 ...
                                      |--- period --->|
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.segments.build_segment import build_unverified_segment
from graphpipe.schedule.segments.planned_versions import delays
from graphpipe.schedule.verify import verify
from graphpipe.simulator.critical_path import applies
from graphpipe.simulator.lines.line_times import line_times
from graphpipe.simulator.lines.port_times import port_times
from graphpipe.simulator.lines.repeating_period import KINDS, Period
from graphpipe.simulator.simulate import happen_lowered

_LONGEST = 96
"""Most mini-batches to simulate."""
_RELATIVE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The steady state of a plan that does not flush."""

    period_seconds: float
    """Seconds per mini-batch."""
    cycle: int
    """After how many mini-batches the state repeats; 0 if it was not seen to repeat."""
    bubble_fraction: float
    """Share of device time, over the devices in use, spent neither computing nor updating weights."""


class TimedTask(NamedTuple):
    """A task on a device."""

    device: int
    task: StageTask
    end: float
    """Seconds from the start of the segment."""
    seconds: float
    """Seconds that the task takes."""


def steady_state(plan: Plan) -> SteadyState:
    """Return the steady state of a plan whose weight policy is not `flush`.

    Segments of more and more mini-batches are simulated, until the ends of all tasks of a mini-batch are those of an
    earlier one, shifted by one and the same constant. This must hold for as many mini-batches as a task can depend on.
    Then it holds for all later ones, because every end is a maximum of sums. If the state does not repeat within
    96 mini-batches (if devices share cores, or if branches never meet), every task has a period of its own, and the
    longest of them counts: that of the slowest branch.

    Raises:
        InvalidInput: the plan's schedule deadlocks, or cannot go on without a flush.
    """
    window = 2 + max(delays(plan))  # mini-batches that may be in flight together
    count = window + 4
    while True:
        ends, busy = _ends(plan, count)
        repeated = _period(ends, window, last_resort=count >= _LONGEST)
        if repeated is not None:
            period, cycle = repeated
            total = period * len(plan.used_devices)
            bubble = 1.0 - busy / total if total else 0.0
            return SteadyState(period_seconds=period, cycle=cycle, bubble_fraction=bubble)
        count = min(2 * count, max(_LONGEST, count + 1))


def _ends(plan: Plan, count: int) -> tuple[list[list[float]], float]:
    """Return the ends of all tasks by mini-batch, each in the same order, and the busy seconds of one mini-batch."""
    happened = timed_tasks(plan, build_unverified_segment(plan, count))
    ends: list[list[float]] = [[] for _ in range(count)]
    for timed in sorted(happened, key=_place):
        task = timed.task
        turn = task.micro_batch if task.kind == "U" else task.micro_batch // plan.micro_batches(task.stage)
        ends[turn].append(timed.end)
    return ends, sum(timed.seconds for timed in happened) / count


def _place(timed: TimedTask) -> tuple[int, str, int, int]:
    # The same order in every mini-batch.
    return timed.device, timed.task.kind, timed.task.stage, timed.task.micro_batch


def _period(ends: Sequence[Sequence[float]], window: int, *, last_resort: bool) -> tuple[float, int] | None:
    """Return the period and its cycle if the last mini-batches before the drain repeat; the cycle is 0 if they do not,
    and it is the last resort."""
    stop = len(ends) - window  # later mini-batches may be part of the drain
    repeated = _repetition(ends[:stop], window)
    if repeated is not None or not last_resort:
        return repeated
    return max(_own_period([mini_batch[task] for mini_batch in ends[:stop]], window) for task in range(len(ends[0]))), 0


def _own_period(ends: Sequence[float], window: int) -> float:
    """Return the seconds from one end of a task to the next: the mean of the later half if they do not repeat."""
    repeated = _repetition([(end,) for end in ends], window)
    half = len(ends) // 2
    return repeated[0] if repeated is not None else (ends[-1] - ends[half - 1]) / (len(ends) - half)


def _repetition(ends: Sequence[Sequence[float]], window: int) -> tuple[float, int] | None:
    """Return the period and the cycle after which the last ends are earlier ones, shifted by one constant."""
    stop = len(ends)
    limit = _RELATIVE * max(ends[-1])
    for cycle in range(1, stop - window + 1):
        shift = ends[-1][0] - ends[-1 - cycle][0]
        pairs = zip(ends[stop - cycle - window : stop - cycle], ends[stop - window :], strict=True)
        if all(
            abs(late - early - shift) <= limit for some, more in pairs for early, late in zip(some, more, strict=True)
        ):
            return shift / cycle, cycle
    return None


def timed_tasks(plan: Plan, schedule: Schedule) -> Sequence[TimedTask]:
    """Return the tasks of all devices with the times that `simulate` finds, without a trace.

    Most plans are timed without lowering their schedule, about ten times faster: those of clusters that overlap
    messages (see `critical_path.applies`). If devices host several stages, these must not have replicas, because the
    order of their reductions is known only once they are lowered.

    Raises:
        InvalidInput: the schedule deadlocks.
    """
    if applies(plan) and (not plan.shares_devices or all(stage.degree == 1 for stage in plan.stages)):
        period = Period(plan, schedule)
        if (times := (port_times if period.ports else line_times)(period)) is not None:
            return [timed for line, ends in enumerate(times.ends) for timed in _on_line(period, line, ends)]
    verify(plan, schedule)  # Its error names the tasks that deadlock.
    return [
        TimedTask(what[0], what[1], when.end, when.end - when.start)
        for what, when in happen_lowered(plan, lower(plan, schedule))
        if isinstance(what, tuple)
    ]


def _on_line(period: Period, line: int, ends: Sequence[float]) -> list[TimedTask]:
    device = period.plan.used_devices[line]
    seconds = {
        (kind, stage): taken
        for stage, some in zip(period.hosted[line], period.seconds[line], strict=True)
        for kind, taken in (*zip(KINDS, some, strict=True), ("U", period.plan.optimizer_seconds(stage)))
    }
    tasks = zip(period.schedule.devices[device], ends, strict=True)
    return [TimedTask(device, task, end, seconds[task.kind, task.stage]) for task, end in tasks]
