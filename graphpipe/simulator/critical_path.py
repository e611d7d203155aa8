"""The step time of plans as planners make them, without a trace. It is fast enough to rank many plans."""

from collections.abc import Iterator

from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build_unverified
from graphpipe.schedule.verify import verify
from graphpipe.simulator.repeating_period import KINDS, Period, Slot

Moment = tuple[int, int]
"""The number of a task in a period, and the index of the period."""


def applies(plan: Plan) -> bool:
    """Whether every device hosts at most one stage, has its own cores, and computes while others move its messages.

    Then the times at which a device or a channel is free depend only on the order of tasks of its own stage.
    """
    cluster = plan.cluster
    free = cluster.cores_per_node is None and not cluster.messages_take_devices
    return cluster.overlap and free and not plan.shares_devices


def critical_path(plan: Plan, schedule: Schedule | None = None) -> float:
    """Return the same step seconds as `simulate`, without the trace, for a plan that `applies` accepts.

    Replicas and branches with the same tasks at the same times are computed once.

    Args:
        plan: a sound plan.
        schedule: a sound schedule of the plan; None: the one that the plan names.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    schedule = schedule or build_unverified(plan)
    period = Period(plan, schedule)
    ends = _slot_ends(period)
    if len(ends) < len(set(period.alike)):
        verify(plan, schedule)  # Raises an error that names the deadlocked tasks.
    last = [0.0] * len(plan.stages)
    for slot, (stage, _) in enumerate(period.slots):
        last[stage] = max(last[stage], ends[period.alike[slot]])
    ready = [end + plan.reduce_seconds(stage) for stage, end in enumerate(last)]
    for tied in plan.tied_gradients:  # in this order, because a stage does one reduction after the other
        begin = max(ready[stage] for stage in tied.stages)
        for stage in tied.stages:
            ready[stage] = begin + plan.tied_gradients_seconds(tied)
    return max(end + plan.optimizer_seconds(stage) for stage, end in enumerate(ready))


def _slot_ends(period: Period) -> dict[Slot, float]:
    # Each slot is timed until it needs a task that is not timed yet. That task resumes the slot.
    arrivals, ends = _arrivals(period), dict[Moment, float]()
    channels: dict[tuple[Slot, Slot], float] = {}
    free = {slot: period.begins[slot] for slot in period.alike}
    rest = {slot: _moments(period, slot) for slot in free}
    heads = [(slot, next(rest[slot])) for slot in free]
    finished: dict[Slot, float] = {}
    waiting: dict[Moment, list[tuple[Slot, tuple[Moment, float]]]] = {}
    while heads:
        slot, (moment, seconds) = heads.pop()
        number, turn = moment
        missing = next(((source, turn) for source, _, _ in arrivals[number] if (source, turn) not in ends), None)
        if missing is not None:
            waiting.setdefault(missing, []).append((slot, (moment, seconds)))
            continue
        start = free[slot]
        for source, sending, channel in arrivals[number]:
            # A channel carries messages in the order of the tasks at its ends.
            arrived = max(ends[source, turn], channels.get(channel, 0.0)) + sending
            channels[channel] = arrived
            start = max(start, arrived)
        ends[moment] = free[slot] = start + seconds
        heads += waiting.pop(moment, ())
        if (following := next(rest[slot], None)) is not None:
            heads.append((slot, following))
        else:
            finished[slot] = free[slot]
    return finished


def _arrivals(period: Period) -> list[list[tuple[int, float, tuple[Slot, Slot]]]]:
    # What a task waits for, with every source replaced by its representative among equal slots.
    representative = [
        number - period.firsts[slot] + period.firsts[period.alike[slot]] for number, slot in enumerate(period.slot_of)
    ]
    return [[(representative[it.source], it.seconds, it.channel) for it in waits] for waits in period.arrivals]


def _moments(period: Period, slot: Slot) -> Iterator[tuple[Moment, float]]:
    """Yield the tasks of a slot in order, with the seconds of each."""
    stage, device = period.slots[slot]
    count, first, third = period.numbers.counts[stage], period.firsts[slot], period.numbers.third
    above = {"B": 0, "I": 0, "F": third, "W": 2 * third}
    seconds = dict(zip(KINDS, period.seconds[slot], strict=True))
    for task in period.schedule.devices[device]:
        turn, index = divmod(task.micro_batch, count)
        yield (first + index + above[task.kind], turn), seconds[task.kind]
