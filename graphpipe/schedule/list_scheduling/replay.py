"""Times a given order of tasks, in the model that the list schedulers use."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from graphpipe.schedule.list_scheduling.partial_schedule import PartialSchedule
from graphpipe.schedule.list_scheduling.plan_work import PlanWork
from graphpipe.schedule.schedule import Schedule, StageTask


def replay(works: PlanWork, schedule: Schedule) -> PartialSchedule | None:
    """Return a schedule with times: every task starts as soon as it can. None if tasks wait for each other forever.

    All replicas of a stage do the same tasks at the same times, so one device stands for all of them.
    """
    replayed = _Replay(
        PartialSchedule(works), [schedule.devices[device] for device in works.devices], [0] * len(works.devices)
    )
    waiting = set(range(len(works.devices)))
    while waiting:
        place = waiting.pop()
        while (touched := replayed.advance(place)) is not None:
            waiting |= touched
    return replayed.partial if replayed.partial.complete else None


@dataclass(frozen=True, slots=True)
class _Replay:
    partial: PartialSchedule
    lines: Sequence[Sequence[StageTask]]
    """The tasks of each of `PlanWork.devices`."""
    at: list[int]
    """How many tasks of each device are done."""

    def advance(self, place: int) -> set[int] | None:
        """Add a device's next task. Return the devices that may now continue, or None if the task has to wait."""
        partial, task = self.partial, self._next(place)
        if task is None:
            return None
        stage = partial.works.work_of[task.stage]
        progress = partial.progress[stage]
        places = progress.work.places
        if len(places) > 1 and any(self._next(other) != task for other in places):
            return None
        free = progress.free
        ready = free if task.kind == "W" else progress.forward_at if task.kind == "F" else progress.backward_at
        if ready == inf:
            return None
        receivers = partial.put(stage, task.kind, max(ready, free))
        for own in places:
            self.at[own] += 1
        return {other for receiver in receivers for other in receiver.work.places} | {*places} - {place}

    def _next(self, place: int) -> StageTask | None:
        line, done = self.lines[place], self.at[place]
        return line[done] if done < len(line) else None
