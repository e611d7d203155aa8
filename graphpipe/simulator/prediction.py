"""The predicted figures of a plan: step time, bubble, peak memory."""

from itertools import accumulate

from graphpipe.plans import Plan, Prediction
from graphpipe.schedule import Schedule
from graphpipe.schedule import schedule as schedule_of
from graphpipe.schedule.schedule import Kind
from graphpipe.simulator.activities import seconds_of
from graphpipe.simulator.critical_path import applies, critical_path
from graphpipe.simulator.memory import memory_steps
from graphpipe.simulator.repeating_period import KINDS
from graphpipe.simulator.simulate import simulate


def predict(plan: Plan) -> Prediction:
    """Return the step time, bubble and peak memory that `simulate` finds, without the trace where it is not needed.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    if not applies(plan) or plan.cost_model.knows_temporaries:
        trace = simulate(plan)
        return Prediction(
            step_seconds=trace.step_seconds, bubble_fraction=trace.bubble_fraction, peak_bytes=trace.peak_bytes
        )
    schedule = schedule_of(plan)
    step = critical_path(plan, schedule)
    busy = sum(_busy_seconds(plan, schedule, number) for number in range(len(plan.stages)))
    peak = [0.0] * len(plan.cluster.devices)
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            peak[device] = _peak_bytes(plan, schedule, number)
    bubble = 1.0 - busy / (step * len(plan.used_devices)) if step else 0.0
    return Prediction(step_seconds=step, bubble_fraction=bubble, peak_bytes=tuple(peak))


def _busy_seconds(plan: Plan, schedule: Schedule, stage: int) -> float:
    """Seconds that the devices of a stage compute, added up; all replicas have the same tasks."""
    here = plan.stages[stage]
    tasks = schedule.devices[here.devices[0]]
    counts: dict[Kind, int] = {kind: sum(task.kind == kind for task in tasks) for kind in KINDS}
    total = len(here.devices) * plan.cost_model.optimizer_seconds(here.ops)
    for device in here.devices:
        seconds = plan.cost_model.task_seconds(here.ops, device, here.micro_batch / here.degree, here.recompute)
        total += sum(count * seconds_of(kind, seconds, plan.costs) for kind, count in counts.items())
    return total


def _peak_bytes(plan: Plan, schedule: Schedule, stage: int) -> float:
    """The most bytes that a device of a stage holds: what a task frees is gone before the next one starts."""
    here, steps = plan.stages[stage], memory_steps(plan, stage)
    tasks = schedule.devices[here.devices[0]]
    state = plan.cost_model.state_bytes(here.ops)
    return max(accumulate((change for task in tasks for change in steps[task.kind]), initial=state))
