"""Simulate a plan: return its predicted trace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from graphpipe.plans import Plan
from graphpipe.plans.estimates import step_overhead_seconds
from graphpipe.schedule import LoweredSchedule, Reduce, ReduceTied, Schedule, Transfer
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.segments.build_segment import build_segment
from graphpipe.schedule.segments.planned_versions import delays
from graphpipe.schedule.verify import verify
from graphpipe.simulator.activities import Activities
from graphpipe.simulator.drawn_steps import DrawnSteps
from graphpipe.simulator.events.engine import Activity, Interval, run, run_shared
from graphpipe.simulator.memory import memory_over_time
from graphpipe.simulator.simulated_work import HostCopy, MessageHandling, OptimizerStep, SimulatedWork, WeightGather
from graphpipe.simulator.step_loads import StepLoads
from graphpipe.simulator.verify_ports import verify_ports
from graphpipe.trace import Span, SpanKind, Trace

Happened = list[tuple[SimulatedWork, Interval]]
"""Every activity of a step with its interval."""


def simulate(
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    loads: Mapping[str, Sequence[float]] | None = None,
    mini_batches: int | None = None,
) -> Trace:
    """Return the predicted trace of one training step of the plan, or of a segment of several mini-batches.

    A device runs one task at a time, in the schedule's order. Transfers from one device to another run one at a time.
    Where a link is shared, all transfers and reductions of a device at that level share its port in each direction.
    If the cluster overlaps, a transfer starts as soon as its values are produced, and transfers and reductions run in
    parallel with the tasks. If not, they occupy the devices at both ends; if it is duplex, two devices that send to
    each other do so at the same time. Tasks on a node with fewer cores than running tasks share the cores equally. The
    optimizer steps once all gradients of the device are reduced. What a step takes besides all of this follows at its
    end, without a span, and is left out of segments.

    If the plan's costs declare loads, steps differ. Then several steps are drawn. The one whose length is nearest to
    their mean is returned. In a segment, every sample has the expected loads.

    Args:
        plan: a sound plan.
        schedule: a schedule of the plan; None: the one that the plan names.
        loads: of the samples of the step, by the name of each load that the plan's costs declare; None: drawn.
        mini_batches: of the segment. None: one step if the plan flushes, otherwise enough to show its steady state.

    Raises:
        InvalidInput: the schedule does not fit the plan or deadlocks, or the loads are not those of the plan.
    """
    if schedule is None and mini_batches is None and plan.weights != "flush":
        mini_batches = shown_mini_batches(plan)
    if mini_batches is not None:
        lowered = lower(plan, build_segment(plan, mini_batches))
        drawn = None if loads is None else StepLoads.of(plan, loads)
        return _trace(plan, lowered, happen_lowered(plan, lowered, drawn))
    lowered = _lowered(plan, schedule)
    if loads is not None or not plan.costs.loads:
        drawn = None if loads is None else StepLoads.of(plan, loads)
        return _with_overhead(plan, _trace(plan, lowered, happen_lowered(plan, lowered, drawn)))
    return mean_step(plan, schedule)[1]


def shown_mini_batches(plan: Plan) -> int:
    """Return how many mini-batches a segment needs to show filling, a steady mini-batch or two, and draining."""
    return 3 + max(delays(plan))


def mean_step(plan: Plan, schedule: Schedule | None = None) -> tuple[float, Trace]:
    """Return the mean length of several drawn steps, and the trace of the step whose length is nearest to it."""
    lowered = _lowered(plan, schedule)
    drawn = DrawnSteps.of(plan, lowered)
    intervals = _intervals(plan, drawn.lasting(drawn.nearest))
    trace = _trace(plan, lowered, list(zip(drawn.activities.what, intervals, strict=True)))
    return drawn.mean_seconds + step_overhead_seconds(plan), _with_overhead(plan, trace)


def _with_overhead(plan: Plan, trace: Trace) -> Trace:
    return replace(trace, step_seconds=trace.step_seconds + step_overhead_seconds(plan))


def _length(happened: Happened) -> float:
    return max(when.end for _, when in happened)


def _trace(plan: Plan, lowered: LoweredSchedule, happened: Happened) -> Trace:
    cluster = plan.cluster
    if cluster.overlap and cluster.shares_ports:
        verify_ports(plan, happened)
    spans = [span for what, when in happened for span in _spans_of(plan, what, when)]
    spans.sort(key=lambda span: (span.device, span.start_seconds, span.end_seconds))
    return Trace(
        source="simulated",
        plan_fingerprint=plan.fingerprint,
        batch_size=lowered.batch_size,
        device_names=tuple(device.name for device in cluster.devices),
        used_devices=plan.used_devices,
        step_seconds=_length(happened),
        spans=tuple(spans),
        memory=memory_over_time(plan, spans, lowered),
    )


def happen(plan: Plan, schedule: Schedule | None = None) -> Happened:
    """Return every activity of a step whose samples have the expected loads."""
    return happen_lowered(plan, _lowered(plan, schedule))


def _lowered(plan: Plan, schedule: Schedule | None) -> LoweredSchedule:
    if schedule is None:
        schedule = build_schedule(plan)
    else:
        verify(plan, schedule)
    return lower(plan, schedule)


def happen_lowered(plan: Plan, lowered: LoweredSchedule, loads: StepLoads | None = None) -> Happened:
    """Return every activity of a lowered schedule with its interval; without loads, samples have the expected ones."""
    activities = Activities(plan, loads)
    activities.add_all(lowered)
    return list(zip(activities.what, _intervals(plan, activities.all), strict=True))


def critical_work(plan: Plan) -> Happened:
    """Return one chain of work without a gap, from the start of a step to its end, in order of time.

    This work must become shorter for the step to become shorter. From the work that ends last, the chain goes back to
    what this work waited for until the end, and so on. If it waited for several at once, the one that was added first
    is followed. Every sample has the expected load.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    activities = Activities(plan)
    activities.add_all(lower(plan, build_schedule(plan)))
    work, intervals = activities.all, _intervals(plan, activities.all)
    at: int | None = max(range(len(work)), key=lambda number: intervals[number].end)
    path: list[int] = []
    while at is not None:
        path.append(at)
        at = max(work[at].needs, key=lambda number: intervals[number].end, default=None)
    return [(activities.what[number], intervals[number]) for number in reversed(path) if work[number].seconds]


def _intervals(plan: Plan, activities: Sequence[Activity]) -> Sequence[Interval]:
    cores = plan.cluster.cores
    if not cores and not any(activity.uses for activity in activities):
        return run(activities)
    return run_shared(activities, cores)


_Record = tuple[int, SpanKind, int, int, int, float]
"""Device, kind, stage, micro-batch, peer, bytes."""


def _spans_of(plan: Plan, what: SimulatedWork, when: Interval) -> list[Span]:
    """Return a span for each device involved: two for a transfer, one per replica for a reduction."""
    return [
        Span(
            device=device,
            kind=kind,
            stage=stage,
            micro_batch=micro_batch,
            start_seconds=when.start,
            end_seconds=when.end,
            peer=peer,
            bytes=count,
        )
        for device, kind, stage, micro_batch, peer, count in _records(plan, what)
    ]


def _records(plan: Plan, what: SimulatedWork) -> list[_Record]:
    if isinstance(what, Transfer):
        count = what.bytes(plan)
        source, target = what.source_task, what.target_task
        return [
            (what.source_device, "send", source.stage, source.micro_batch, what.target_device, count),
            (what.target_device, "receive", target.stage, target.micro_batch, what.source_device, count),
        ]
    if isinstance(what, Reduce):
        return [(device, "reduce", what.stage, -1, -1, 0.0) for device in plan.stages[what.stage].devices]
    if isinstance(what, ReduceTied):
        tied = plan.tied_gradients[what.tied_gradients]
        return [(device, "reduce", _first(plan, device, tied.stages), -1, -1, 0.0) for device in tied.devices]
    if isinstance(what, OptimizerStep):
        return [(what.device, "optimizer", _first(plan, what.device, range(len(plan.stages))), -1, -1, 0.0)]
    if isinstance(what, HostCopy):
        peer = -1 if what.neighbour is None else what.neighbour
        return [(what.device, what.kind, what.stage, what.micro_batch, peer, what.bytes)]
    if isinstance(what, MessageHandling | WeightGather):
        return []
    device, task = what
    if task.kind == "U":
        return [(device, "optimizer", task.stage, task.micro_batch, -1, 0.0)]
    return [(device, task.kind, task.stage, task.micro_batch, -1, 0.0)]


def _first(plan: Plan, device: int, stages: Iterable[int]) -> int:
    return next(stage for stage in stages if device in plan.stages[stage].devices)
