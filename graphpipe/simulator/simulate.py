"""Simulate a plan: return its predicted trace."""

from graphpipe.plans import Plan
from graphpipe.schedule import LoweredSchedule, Schedule
from graphpipe.schedule.lower import lower
from graphpipe.schedule.schedulers.registry import build_schedule
from graphpipe.schedule.verify import verify
from graphpipe.simulator.activities import Activities, SimulatedWork
from graphpipe.simulator.engine import Interval, run, run_shared
from graphpipe.simulator.memory import memory_over_time
from graphpipe.simulator.spans import spans_of
from graphpipe.trace import Trace


def simulate(plan: Plan, schedule: Schedule | None = None) -> Trace:
    """Return the predicted trace of one training step of the plan.

    A device runs one task at a time, in the schedule's order. Transfers from one device to another run one at a time.
    If the cluster overlaps, a transfer starts as soon as its values are produced, and transfers and reductions run in
    parallel with the tasks. If not, they occupy the devices at both ends. Tasks on a node with fewer cores than running
    tasks share the cores equally. The optimizer steps once all gradients of the device are reduced.

    Args:
        plan: a sound plan.
        schedule: a schedule of the plan; None: the one that the plan names.

    Raises:
        InvalidInput: the schedule does not fit the plan or deadlocks.
    """
    cluster = plan.cluster
    lowered = _lowered(plan, schedule)
    happened = _happen(plan, lowered)
    spans = [span for what, when in happened for span in spans_of(plan, what, when)]
    spans.sort(key=lambda span: (span.device, span.start_seconds, span.end_seconds))
    return Trace(
        source="simulated",
        plan_fingerprint=plan.fingerprint,
        batch_size=plan.batch_size,
        device_names=tuple(device.name for device in cluster.devices),
        used_devices=plan.used_devices,
        step_seconds=max(when.end for _, when in happened),
        spans=tuple(spans),
        memory=memory_over_time(plan, spans, lowered),
    )


def happen(plan: Plan, schedule: Schedule | None = None) -> list[tuple[SimulatedWork, Interval]]:
    """Return every activity of a step with its interval. `simulate` makes the trace from these."""
    return _happen(plan, _lowered(plan, schedule))


def _lowered(plan: Plan, schedule: Schedule | None) -> LoweredSchedule:
    if schedule is None:
        schedule = build_schedule(plan)
    else:
        verify(plan, schedule)
    return lower(plan, schedule)


def _happen(plan: Plan, lowered: LoweredSchedule) -> list[tuple[SimulatedWork, Interval]]:
    activities = Activities(plan)
    activities.add_all(lowered)
    cores = plan.cluster.cores_per_node
    if cores is None:
        intervals = run(activities.found)
    else:
        intervals = run_shared(activities.found, {device.node: cores for device in plan.cluster.devices})
    return list(zip(activities.what, intervals, strict=True))
