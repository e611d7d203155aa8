"""The predicted figures of a plan: step time, bubble, peak memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from graphpipe.plans import Plan, Prediction
from graphpipe.plans.device_memory import stage_memory
from graphpipe.plans.estimates import step_overhead_seconds
from graphpipe.schedule import Schedule, StageTask
from graphpipe.schedule.list_scheduling.plan_work import hosted_stages
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import with_policy
from graphpipe.simulator.critical_path import applies, critical_path, schedule_times, step_end
from graphpipe.simulator.drawn_steps import DrawnSteps
from graphpipe.simulator.lines.copy_lanes import CopyLanes
from graphpipe.simulator.lines.line_times import LineTimes
from graphpipe.simulator.lines.repeating_period import KINDS
from graphpipe.simulator.memory import Change, memory_steps, peak_of
from graphpipe.simulator.simulate import happen, mean_step, shown_mini_batches, simulate
from graphpipe.simulator.steady_period import steady_state


def step_seconds(plan: Plan) -> float:
    """Return exactly the step seconds that `simulate` predicts, but several times faster, without a trace.

    If the plan does not flush, these are the seconds per mini-batch in the steady state.

    If the plan's costs declare loads, every sample has the expected loads. The mean step is longer (see `predict`),
    because devices wait for the slowest micro-batch and the slowest replica.

    Plans as planners make them (see `critical_path.applies`) take about 5 ms for 64 micro-batches on 32 devices. This
    includes plans whose devices host several stages. Every micro-batch is counted, because extrapolation
    from a few can miss a bottleneck that only shows after a long warm-up.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    if plan.weights != "flush":
        return steady_state(plan).period_seconds
    if applies(plan):
        return critical_path(plan) + step_overhead_seconds(plan)
    return max(when.end for _, when in happen(plan)) + step_overhead_seconds(plan)


def predict(plan: Plan) -> Prediction:
    """Return the step time, bubble and peak memory that `simulate` finds. The trace is made only if it is needed.

    If the plan does not flush, the step time is that of its stages with a flush, and the rest is of the steady state.

    If the plan's costs declare loads, the step time is the mean of several drawn steps, and the other figures are those
    of the step whose length is nearest to it.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    if plan.weights != "flush":
        return _predict_steady(plan)
    if not _is_quick(plan):
        seconds, trace = mean_step(plan) if plan.costs.loads else (None, simulate(plan))
        return Prediction(
            step_seconds=seconds or trace.step_seconds,
            bubble_fraction=trace.bubble_fraction,
            peak_bytes=trace.peak_bytes,
        )
    schedule, times = build_schedule(plan), None
    if plan.costs.loads:
        drawn = DrawnSteps.of(plan, lower(plan, schedule))
        mean, step, busy = drawn.mean_seconds, drawn.step_seconds[drawn.nearest], drawn.busy_seconds(drawn.nearest)
    else:
        times = schedule_times(plan, schedule)
        mean = step = step_end(plan, schedule, times)
        busy = sum(_busy_seconds(plan, schedule, number) for number in range(len(plan.stages)))
    mean, step = mean + step_overhead_seconds(plan), step + step_overhead_seconds(plan)
    bubble = 1.0 - busy / (step * len(plan.used_devices)) if step else 0.0
    return Prediction(step_seconds=mean, bubble_fraction=bubble, peak_bytes=_peaks(plan, schedule, times))


def _predict_steady(plan: Plan) -> Prediction:
    steady = steady_state(plan)
    alone = with_policy(plan, "flush")
    if _is_quick(plan):
        peaks = _peaks(plan, build_segment(plan, shown_mini_batches(plan)))
    else:
        peaks = simulate(plan).peak_bytes
    return Prediction(
        step_seconds=mean_step(alone)[0] if plan.costs.loads else step_seconds(alone),
        bubble_fraction=steady.bubble_fraction,
        peak_bytes=peaks,
        steady_seconds=steady.period_seconds,
    )


def _peaks(plan: Plan, schedule: Schedule, times: LineTimes | None = None) -> tuple[float, ...]:
    """Return the most bytes that each device of the cluster holds. Devices with the same tasks are computed once.

    Args:
        plan: the plan.
        schedule: of the plan.
        times: of the schedule, if stages offload. Then they decide what a device holds at once.
    """
    hosted, known = hosted_stages(plan), dict[tuple[tuple[int, ...], int, int], float]()
    peak = [0.0] * len(plan.cluster.devices)
    for line, device in enumerate(plan.used_devices):
        tasks, stages = schedule.devices[device], hosted[device]
        ends, copies = ((), None) if times is None else (times.ends[line], times.copies[line])
        key = stages, id(tasks), id(copies)  # Devices often share one tuple of tasks.
        if key not in known:
            known[key] = (
                _peak_bytes(plan, tasks, stages)
                if copies is None
                else peak_of(_changes(plan, tasks, stages, copies, ends))
            )
        peak[device] = known[key]
    return tuple(peak)


def _is_quick(plan: Plan) -> bool:
    """Return whether the figures follow from the step time and the order of tasks on each device."""
    # In a step with drawn loads, copies are timed only by the simulation.
    drawn = bool(plan.costs.loads) and any(stage.offload for stage in plan.stages)
    return applies(plan) and not drawn and not plan.cost_model.op_bytes.has_temporaries


def _busy_seconds(plan: Plan, schedule: Schedule, stage: int) -> float:
    """Return the summed compute seconds of the devices of a stage. All replicas have the same tasks."""
    here = plan.stages[stage]
    counts = Counter(task.kind for task in schedule.devices[here.devices[0]] if task.stage == stage)
    total = len(here.devices) * plan.optimizer_seconds(stage)
    for device in here.devices:
        seconds = plan.task_seconds(stage, device)
        total += sum(counts[kind] * seconds.of(kind, plan.costs.task_overhead_seconds) for kind in KINDS)
    return total


def _peak_bytes(plan: Plan, tasks: Iterable[StageTask], stages: Iterable[int]) -> float:
    """Return the most bytes that a device holds that hosts these stages.

    It does one task after the other. What a task frees is free before the next one starts.
    """
    state = sum(stage_memory(plan.cost_model, plan.stages[stage]).state for stage in stages)
    steps = {stage: memory_steps(plan, stage) for stage in stages}
    changes = (change for task in tasks if task.kind != "U" for change in steps[task.stage][task.kind])
    return max(accumulate(changes, initial=state))


def _changes(
    plan: Plan, tasks: Sequence[StageTask], stages: Sequence[int], copies: CopyLanes, ends: Sequence[float]
) -> Iterator[Change]:
    """Yield the changes of what a device holds that hosts these stages and offloads some of what they save."""
    for stage in stages:
        yield 0.0, stage_memory(plan.cost_model, plan.stages[stage]).state
    steps = {stage: memory_steps(plan, stage) for stage in stages}
    for task, begin, end in zip(tasks, copies.begins, ends, strict=True):
        starting, ending = steps[task.stage][task.kind]
        yield begin, starting
        yield end, ending
    yield from ((end, steps[stages[place]]["evict"][1]) for place, end in copies.left)
    yield from ((begin, steps[stages[place]]["fetch"][0]) for place, begin in copies.returned)
