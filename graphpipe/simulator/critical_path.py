"""The step time alone, for the plans that planners make: quick enough to rank many of them."""

from collections.abc import Iterator

from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.schedulers.registry import build
from graphpipe.schedule.verify import verify
from graphpipe.simulator.repeating_period import KINDS, Period, Slot

Moment = tuple[int, int]
"""A task of a period by its number, and which period."""


def applies(plan: Plan) -> bool:
    """Whether every device hosts at most one stage, has its own cores, and computes while others move its messages.

    Then nothing but the order of its own stage decides when a device or a channel is free.
    """
    shared = sum(stage.degree for stage in plan.stages) > len(plan.used_devices)
    cluster = plan.cluster
    free = cluster.cores_per_node is None and not cluster.messages_take_devices
    return cluster.overlap and free and not shared


def critical_path(plan: Plan, schedule: Schedule | None = None) -> float:
    """Return the step seconds of a plan that `applies` holds for: what `simulate` finds, without the trace.

    Replicas and branches that do the same at the same times are computed once.

    Args:
        plan: a sound plan.
        schedule: a sound schedule of the plan; None: the one the plan names.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    schedule = schedule or build(plan)
    period, model = Period(plan, schedule), plan.cost_model
    ends = _slot_ends(period)
    if len(ends) < len(set(period.alike)):
        verify(plan, schedule)  # Names the tasks that wait for ever.
    last = [0.0] * len(plan.stages)
    for slot, (stage, _) in enumerate(period.slots):
        last[stage] = max(last[stage], ends[period.alike[slot]])
    ready = [end + plan.reduce_seconds(stage) for stage, end in enumerate(last)]
    for exchange in plan.exchanges:  # in this order: a stage takes part in one after the other
        begin = max(ready[stage] for stage in exchange.stages)
        for stage in exchange.stages:
            ready[stage] = begin + plan.exchange_seconds(exchange)
    return max(end + model.optimizer_seconds(stage.ops) for end, stage in zip(ready, plan.stages, strict=True))


def _slot_ends(period: Period) -> dict[Slot, float]:
    # Each slot goes on until it needs a task that has not been timed yet; that task wakes it up.
    arrivals, ends = _arrivals(period), dict[Moment, float]()
    channels: dict[tuple[Slot, Slot], float] = {}
    free = dict.fromkeys(period.alike, 0.0)
    rest = {slot: _moments(period, slot) for slot in free}
    heads = [(slot, next(rest[slot])) for slot in free]
    finished: dict[Slot, float] = {}
    asleep: dict[Moment, list[tuple[Slot, tuple[Moment, float]]]] = {}
    while heads:
        slot, (moment, seconds) = heads.pop()
        number, turn = moment
        missing = next(((source, turn) for source, _, _ in arrivals[number] if (source, turn) not in ends), None)
        if missing is not None:
            asleep.setdefault(missing, []).append((slot, (moment, seconds)))
            continue
        start = free[slot]
        for source, sending, channel in arrivals[number]:
            # A channel carries what it is given in the order of both its ends.
            arrived = max(ends[source, turn], channels.get(channel, 0.0)) + sending
            channels[channel] = arrived
            start = max(start, arrived)
        ends[moment] = free[slot] = start + seconds
        heads += asleep.pop(moment, ())
        if (following := next(rest[slot], None)) is not None:
            heads.append((slot, following))
        else:
            finished[slot] = free[slot]
    return finished


def _arrivals(period: Period) -> list[list[tuple[int, float, tuple[Slot, Slot]]]]:
    # What a task waits for, with every source replaced by the one that stands for it.
    stands = [
        number - period.firsts[slot] + period.firsts[period.alike[slot]] for number, slot in enumerate(period.slot_of)
    ]
    return [[(stands[it.source], it.seconds, it.channel) for it in waits] for waits in period.arrivals]


def _moments(period: Period, slot: Slot) -> Iterator[tuple[Moment, float]]:
    """The tasks of a slot in order, with the seconds each takes."""
    stage, device = period.slots[slot]
    count, first, third = period.numbers.counts[stage], period.firsts[slot], period.numbers.third
    above = {"B": 0, "I": 0, "F": third, "W": 2 * third}
    seconds = dict(zip(KINDS, period.seconds[slot], strict=True))
    for task in period.schedule.devices[device]:
        turn, index = divmod(task.micro_batch, count)
        yield (first + index + above[task.kind], turn), seconds[task.kind]
