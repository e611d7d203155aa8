"""Merges an order of tasks per stage into an order per device."""

from collections.abc import Iterator, Mapping, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.logical_clock import LogicalClock, TaskChain
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.task_numbers import (
    Passage,
    TaskNumbers,
    channels_of,
    equal_devices,
    samples_along,
    update_waits,
)


def merge(name: str, plan: Plan, orders: Sequence[Sequence[StageTask]], mini_batches: int = 1) -> Schedule:
    """Return the schedule in which every stage keeps its order of tasks.

    A device that hosts one stage takes that stage's order. A device that hosts several interleaves their orders by a
    logical clock, with one tick for the forward of a sample and two for its backward. It takes the task that can start
    first. Of several, a backward goes before a forward, and a weight gradient comes last.

    Args:
        name: of the schedule.
        plan: the devices and sharding of its stages decide which task waits for which.
        orders: the tasks of each stage, by stage.
        mini_batches: of the orders, if they are those of a segment.

    Raises:
        InvalidInput: no interleaving exists, because a stage may not have enough samples in flight.
    """
    hosted = {device: [s for s, stage in enumerate(plan.stages) if device in stage.devices] for device in _all(plan)}
    orders = [tuple(tasks) for tasks in orders]  # Replicas share one tuple.
    only = [_only_order(plan, orders, stages) for stages in hosted.values()]
    devices = [tasks for tasks in only if tasks is not None]
    if len(devices) < len(only):
        return Schedule(name=name, devices=_interleave(plan, orders, hosted, mini_batches))
    return Schedule(name=name, devices=tuple(devices))


def _only_order(
    plan: Plan, orders: Sequence[Sequence[StageTask]], stages: Sequence[int]
) -> tuple[StageTask, ...] | None:
    """Return the order of a device if there is only one; None if the clock decides.

    A device with one stage has its order. If a second stage does the whole mini-batch at once, and the first one feeds
    it and waits for its gradients, its tasks come after all forwards of the first one, and before all backwards.
    """
    if len(stages) < 2:
        return tuple(orders[stages[0]]) if stages else ()
    first, second, *more = stages
    forwards, others = orders[first][: plan.micro_batches(first)], orders[first][plan.micro_batches(first) :]
    waits = any((plan.edges[at].source, plan.edges[at].target) == (first, second) for at in plan.gradient_edges)
    # Its forward needs samples of every micro-batch of the first stage, and each of its gradients is for such samples.
    at_once = len(orders[second]) == 2 and plan.micro_batches(second) == 1
    if more or not waits or not at_once or any(task.kind != "F" for task in forwards):
        return None
    return (*forwards, *orders[second], *others)


def _interleave(
    plan: Plan, orders: Sequence[Sequence[StageTask]], hosted: dict[int, list[int]], mini_batches: int
) -> tuple[tuple[StageTask, ...], ...]:
    # Devices that do the same at the same logical times get the same order, so it is found for one of them.
    numbers = TaskNumbers(plan, mini_batches * plan.batch_size)
    channels = {pair: tuple(some) for pair, some in channels_of(plan, numbers.batch_size).items()}
    stands = equal_devices(map(tuple, hosted.values()), channels)
    listed = {device: stages for device, stages in hosted.items() if stands[device] == device}
    tasks = {numbers.number(task, d): task for d, stages in listed.items() for s in stages for task in orders[s]}
    chains = [
        TaskChain(device=device, tasks=[numbers.number(task, device) for task in orders[stage]])
        for device, stages in listed.items()
        for stage in stages
    ]
    clock = LogicalClock(numbers.ticks(tasks))
    clock.run(chains, [*_flows(numbers, channels, stands), *update_waits(plan, tasks)])
    check_all_start(plan, clock, chains, tasks)
    devices: dict[int, list[StageTask]] = {device: [] for device in listed}
    for number in clock.starts:
        devices[clock.device_of[number]].append(tasks[number])
    merged = {device: tuple(some) for device, some in devices.items()}
    return tuple(merged[stands[device]] for device in hosted)


def _flows(
    numbers: TaskNumbers, channels: Mapping[tuple[int, int], tuple[Passage, ...]], stands: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of numbers, a task and one that waits for it, of the devices that stand for others."""
    plan = numbers.plan
    arriving = dict.fromkeys((stands[source], at, some) for (source, at), some in channels.items() if stands[at] == at)
    for source, target, passages in arriving:
        for edge, backward, kind in passages:
            ends = plan.edges[edge]
            on, other = (target, source) if backward else (source, target)
            here, there = numbers.first(ends.source, on), numbers.first(ends.target, other)
            for index, position, _ in samples_along(plan, edge, numbers.batch_size).pieces[kind]:
                pair = numbers.third + here + index, numbers.third + there + position
                yield (there + position, here + index) if backward else pair


def check_all_start(
    plan: Plan, clock: LogicalClock, chains: Sequence[TaskChain], tasks: Mapping[int, StageTask]
) -> None:
    """Check that every task starts.

    Raises:
        InvalidInput: some tasks wait forever. The error names the first of some chains.
    """
    heads = [next((task for task in chain.tasks if task not in clock.starts), None) for chain in chains]
    stuck = [(chain.device, tasks[task]) for chain, task in zip(chains, heads, strict=True) if task is not None]
    if stuck:
        some = ", ".join(f"{task} on {plan.cluster.devices[device].name}" for device, task in stuck[:4])
        raise InvalidInput(
            f"tasks wait for each other forever: {some}{', ...' if len(stuck) > 4 else ''}",
            where="schedule",
            remedy="Raise the in_flight samples of the stages before those that wait.",
        )


def _all(plan: Plan) -> range:
    return range(len(plan.cluster.devices))
