"""The step time of plans as planners make them, without a trace. It is fast enough to rank many plans."""

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import combinations

from graphpipe.cluster import Cluster
from graphpipe.plans import Plan
from graphpipe.schedule import Schedule
from graphpipe.schedule.logical_clock import LogicalClock, TaskChain
from graphpipe.schedule.schedulers.registry import build_unverified
from graphpipe.schedule.task_numbers import TaskNumbers
from graphpipe.schedule.verify import verify
from graphpipe.simulator.lines.line_times import LineTimes, line_times
from graphpipe.simulator.lines.port_times import Reduction, port_times
from graphpipe.simulator.lines.repeating_period import Period


def applies(plan: Plan) -> bool:
    """Return whether a plan trains, and its times follow from the order of tasks on each device (see `overlaps`).

    A step with a short last micro-batch has no repeating part, so such plans are simulated.
    Devices that share a replica wait for each other, so plans with such stages are simulated. What is offloaded to a
    neighbour takes the channels of messages. Without a flush, no copies are timed here.
    """
    if not plan.trains or plan.shares_replicas or not overlaps(plan.cluster):
        return False
    if any(plan.batch_size % stage.micro_batch for stage in plan.stages):
        return False
    return not any(stage.offload and (stage.offload_to or plan.weights != "flush") for stage in plan.stages)


def overlaps(cluster: Cluster) -> bool:
    """Return whether every device has its own cores, and computes while others move its messages.

    Then the times at which a device or a channel is free depend only on the order of its own tasks.
    """
    return cluster.overlap and cluster.cores_per_node is None and not cluster.messages_take_devices


def critical_path(plan: Plan, schedule: Schedule | None = None) -> float:
    """Return the same step seconds as `simulate`, without the trace, for a plan that `applies` accepts.

    Devices with the same tasks at the same times are computed once.

    Args:
        plan: a sound plan.
        schedule: a sound schedule of the plan; None: the one that the plan names.

    Raises:
        InvalidInput: the plan's schedule deadlocks or is unknown.
    """
    schedule = schedule or build_unverified(plan)
    return step_end(plan, schedule, schedule_times(plan, schedule))


def schedule_times(plan: Plan, schedule: Schedule) -> LineTimes:
    """Return when tasks and copies happen, for a plan that `applies` accepts.

    Args:
        plan: a sound plan.
        schedule: of the plan.

    Raises:
        InvalidInput: the schedule deadlocks.
    """
    period = Period(plan, schedule)
    times = port_times(period, _reductions(plan, schedule)) if period.ports else line_times(period)
    if times is None:
        verify(plan, schedule)  # Raises an error that names the deadlocked tasks.
    assert times is not None, "a schedule that does not deadlock ends"
    return times


def step_end(plan: Plan, schedule: Schedule, times: LineTimes) -> float:
    """Return when a step ends: gradients are summed and weights updated after the last tasks."""
    if times.step_seconds is not None:
        return times.step_seconds
    last = _last_tasks(plan, schedule)
    order = _reduction_order(plan, last) or _logical_order(plan, schedule)
    ends = dict(zip(plan.used_devices, times.ends, strict=True))
    return _updated(plan, order, {key: ends[key[0]][at] for key, at in last.items()})


def _reductions(plan: Plan, schedule: Schedule) -> list[Reduction]:
    """Return the sums of gradients at the end of a step, in the order in which devices do them."""
    last, port = _last_tasks(plan, schedule), plan.cluster.ring_port
    line = {device: number for number, device in enumerate(plan.used_devices)}
    reductions: list[Reduction] = []
    for number in _reduction_order(plan, last) or _logical_order(plan, schedule):
        devices = plan.stages[number].devices
        if len(devices) > 1:
            shares = {line[device]: last[device, number] for device in devices}
            reductions.append(Reduction(shares, plan.reduce_seconds(number), port(devices)))
    for number, tied in enumerate(plan.tied_gradients):
        shares = dict[int, int]()
        for stage in tied.stages:
            for device in plan.stages[stage].devices:
                shares[line[device]] = max(shares.get(line[device], 0), last[device, stage])
        reductions.append(Reduction(shares, plan.tied_gradients_seconds(tied), port(tied.devices), number))
    return reductions


LastTasks = Mapping[tuple[int, int], int]
"""The position of a stage's last task among the tasks of a device, by device and stage."""


def _last_tasks(plan: Plan, schedule: Schedule) -> LastTasks:
    if not plan.shares_devices:
        lists = schedule.devices
        return {(d, number): len(lists[d]) - 1 for number, stage in enumerate(plan.stages) for d in stage.devices}
    known: dict[int, dict[int, int]] = {}  # Devices often share one tuple of tasks.
    last_tasks: dict[tuple[int, int], int] = {}
    for device in plan.used_devices:
        tasks = schedule.devices[device]
        if id(tasks) not in known:
            known[id(tasks)] = {task.stage: at for at, task in enumerate(tasks)}
        last_tasks |= {(device, stage): at for stage, at in known[id(tasks)].items()}
    return last_tasks


def _reduction_order(plan: Plan, last: LastTasks) -> Sequence[int] | None:
    """Return an order of the stages that gives every device its order of reductions; None if the clock decides.

    A stage reduces before another one if its last task is earlier on all its devices, and the other one is on all of
    them too. The other one then ends later on one device at least.
    """
    if not plan.shares_devices:
        return range(len(plan.stages))
    sorter = TopologicalSorter({stage: set[int]() for stage in range(len(plan.stages))})
    replicated = [(number, frozenset(stage.devices)) for number, stage in enumerate(plan.stages) if stage.degree > 1]
    for (one, here), (other, there) in combinations(replicated, 2):
        if here.isdisjoint(there):
            continue
        if here <= there and all(last[device, one] < last[device, other] for device in here):
            sorter.add(other, one)
        elif there <= here and all(last[device, other] < last[device, one] for device in there):
            sorter.add(one, other)
        else:
            return None
    return list(sorter.static_order())


def _logical_order(plan: Plan, schedule: Schedule) -> Sequence[int]:
    """Return the order of the stages' reductions by the logical clock, as `lower` finds it."""
    numbers = TaskNumbers(plan, plan.batch_size)
    lists = [[numbers.number(task, device) for task in tasks] for device, tasks in enumerate(schedule.devices)]
    tasks = {
        number: task
        for some, listed in zip(lists, schedule.devices, strict=True)
        for number, task in zip(some, listed, strict=True)
    }
    clock = LogicalClock(numbers.ticks(tasks))
    chains = [TaskChain(device=device, tasks=some) for device, some in enumerate(lists)]
    clock.run(chains, ((flow.source, flow.target) for flow in numbers.flows(None)))
    last: dict[int, tuple[int, int]] = {}
    for number, start in clock.starts.items():
        stage = tasks[number].stage
        last[stage] = max(last.get(stage, (0, 0)), (start + clock.ticks[number], number))
    return sorted(last, key=last.__getitem__)


def _updated(plan: Plan, order: Sequence[int], ends: Mapping[tuple[int, int], float]) -> float:
    """Return when all devices have updated their weights.

    Args:
        plan: the plan.
        order: of the stages' reductions.
        ends: of the last task, by device and stage.
    """
    ready = dict.fromkeys(plan.used_devices, 0.0)  # after the reductions so far
    for number in order:
        stage = plan.stages[number]
        if stage.degree > 1:
            begin = max(max(ends[device, number], ready[device]) for device in stage.devices)
            ready |= dict.fromkeys(stage.devices, begin + plan.reduce_seconds(number))
    for tied in plan.tied_gradients:  # in this order, because a device does one reduction after the other
        last = max(ends[device, stage] for stage in tied.stages for device in plan.stages[stage].devices)
        begin = max(last, *(ready[device] for device in tied.devices))
        ready |= dict.fromkeys(tied.devices, begin + plan.tied_gradients_seconds(tied))
    updates = dict.fromkeys(plan.used_devices, 0.0)
    for number, stage in enumerate(plan.stages):
        seconds = plan.optimizer_seconds(number)
        for device in stage.devices:
            ready[device] = max(ready[device], ends[device, number])
            updates[device] += seconds
    return max(ready[device] + updates[device] for device in plan.used_devices)
