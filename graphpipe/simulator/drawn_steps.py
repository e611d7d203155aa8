"""Steps of one schedule whose samples have random loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.schedule import LoweredSchedule
from graphpipe.schedule.schedule import Kind
from graphpipe.simulator.activities import Activities
from graphpipe.simulator.events.engine import Activity, ends_of_steps, run_shared
from graphpipe.simulator.lines.repeating_period import KINDS
from graphpipe.simulator.simulated_work import OptimizerStep
from graphpipe.simulator.step_loads import DRAWN_STEPS, StepLoads, draw_loads

Array = NDArray[np.float64]


# No slots: what the steps take is a cached property.
@dataclass(frozen=True)
class DrawnSteps:
    """The steps of a lowered schedule. They have the same activities, which take other seconds."""

    plan: Plan
    activities: Activities
    seconds: Array
    """[activities, steps]: seconds of every activity."""

    @staticmethod
    def of(plan: Plan, lowered: LoweredSchedule) -> "DrawnSteps":
        """Draw the steps of a plan: one if every sample has the same loads."""
        count = DRAWN_STEPS if any(len(load.loads) > 1 for load in plan.costs.loads) else 1
        activities = Activities(plan)
        activities.add_all(lowered)
        drawn = [StepLoads.of(plan, draw_loads(plan, step)) for step in range(count)]
        return DrawnSteps(plan, activities, _drawn_seconds(plan, activities, drawn))

    @cached_property
    def step_seconds(self) -> list[float]:
        """Seconds of every step."""
        cores = self.plan.cluster.cores
        if not cores and not any(activity.uses for activity in self.activities.all):
            return ends_of_steps(self.activities.all, self.seconds).max(axis=0).tolist()
        steps = range(self.seconds.shape[1])
        return [max(interval.end for interval in run_shared(self.lasting(step), cores)) for step in steps]

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of a step."""
        return sum(self.step_seconds) / len(self.step_seconds)

    @property
    def nearest(self) -> int:
        """The step whose length is nearest to the mean."""
        mean = self.mean_seconds
        return min(range(len(self.step_seconds)), key=lambda step: abs(self.step_seconds[step] - mean))

    def busy_seconds(self, step: int) -> float:
        """Return the seconds that all devices compute in a step: tasks and optimizer."""
        busy = [at for at, what in enumerate(self.activities.what) if isinstance(what, tuple | OptimizerStep)]
        return float(self.seconds[busy, step].sum())

    def lasting(self, step: int) -> list[Activity]:
        """Return the activities of a step, with their seconds."""
        pairs = zip(self.activities.all, self.seconds[:, step].tolist(), strict=True)
        return [activity._replace(seconds=own) for activity, own in pairs]


_Samples = tuple[int, str, SampleRange]
"""A stage, the type of a device, and what it has of a micro-batch."""


def _drawn_seconds(plan: Plan, activities: Activities, drawn: Sequence[StepLoads]) -> Array:
    """Return the seconds of all activities, [activities, steps]. Only those of tasks depend on the loads."""
    seconds_of_steps = np.repeat(np.array([work.seconds for work in activities.all])[:, None], len(drawn), axis=1)
    known: dict[tuple[int, str, int, tuple[float, ...]], dict[Kind, float]] = {}
    for (stage, kind_of_device, rows), tasks in _tasks_by_samples(plan, activities).items():
        for step, loads in enumerate(drawn):
            key = stage, kind_of_device, len(rows), loads.within(rows)
            if (seconds := known.get(key)) is None:
                seconds = known[key] = _seconds_by_kind(plan, *key)
            for number, kind in tasks:
                seconds_of_steps[number, step] = seconds[kind]
    return seconds_of_steps


def _tasks_by_samples(plan: Plan, activities: Activities) -> dict[_Samples, list[tuple[int, Kind]]]:
    """Return the number and kind of every activity that is a task with loaded operators, by the samples it reads."""
    has_load = [any(not set(load.ops).isdisjoint(stage.ops) for load in plan.costs.loads) for stage in plan.stages]
    replica = [{device: at // stage.tensor for at, device in enumerate(stage.devices)} for stage in plan.stages]
    tasks: dict[_Samples, list[tuple[int, Kind]]] = {}
    for number, what in enumerate(activities.what):
        if not isinstance(what, tuple) or what[1].kind == "U" or not has_load[what[1].stage]:
            continue
        device, task = what
        stage = plan.stages[task.stage]
        size, degree, at = stage.micro_batch, stage.degree, replica[task.stage][device]
        rows = sample_range(plan.batch_size, size, degree, task.micro_batch, at)
        tasks.setdefault((task.stage, plan.cluster.devices[device].type, rows), []).append((number, task.kind))
    return tasks


def _seconds_by_kind(
    plan: Plan, stage: int, kind_of_device: str, samples: int, loads: tuple[float, ...]
) -> dict[Kind, float]:
    here = plan.stages[stage]
    device = next(device for device in here.devices if plan.cluster.devices[device].type == kind_of_device)
    seconds = plan.task_seconds(stage, device, loads, samples)
    return {kind: seconds.of(kind, plan.costs.task_overhead_seconds) for kind in KINDS}
