"""When the tasks of a segment happen, without a trace. It is fast enough to rank many plans by their steady period."""

from collections.abc import Sequence
from typing import NamedTuple

from graphpipe.plans import Plan
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.verify import verify
from graphpipe.simulator.critical_path import applies
from graphpipe.simulator.lines.line_times import line_times
from graphpipe.simulator.lines.repeating_period import KINDS, Period
from graphpipe.simulator.simulate import happen_lowered


class TimedTask(NamedTuple):
    """A task on a device."""

    device: int
    task: StageTask
    end: float
    """Seconds from the start of the segment."""
    seconds: float
    """That it takes."""


def timed_tasks(plan: Plan, schedule: Schedule) -> Sequence[TimedTask]:
    """Return the tasks of all devices with the times that `simulate` finds.

    Most plans are timed without lowering their schedule, about ten times faster: those of clusters that overlap
    messages (see `critical_path.applies`). If devices host several stages, these must not have replicas, because the
    order of their reductions is known only once they are lowered.

    Raises:
        InvalidInput: the schedule deadlocks.
    """
    if applies(plan) and (not plan.shares_devices or all(stage.degree == 1 for stage in plan.stages)):
        period = Period(plan, schedule)
        if (times := line_times(period)) is not None:
            return [timed for line, ends in enumerate(times.ends) for timed in _on_line(period, line, ends)]
    verify(plan, schedule)  # Its error names the tasks that deadlock.
    return [
        TimedTask(*what, when.end, when.end - when.start)
        for what, when in happen_lowered(plan, lower(plan, schedule))
        if isinstance(what, tuple)
    ]


def _on_line(period: Period, line: int, ends: Sequence[float]) -> list[TimedTask]:
    device = period.plan.used_devices[line]
    seconds = {
        (kind, stage): each
        for stage, some in zip(period.hosted[line], period.seconds[line], strict=True)
        for kind, each in (*zip(KINDS, some, strict=True), ("U", period.plan.optimizer_seconds(stage)))
    }
    tasks = zip(period.schedule.devices[device], ends, strict=True)
    return [TimedTask(device, task, end, seconds[task.kind, task.stage]) for task, end in tasks]
