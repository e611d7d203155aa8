"""From a schedule to what every device does: tasks, transfers and reductions in one order that cannot deadlock."""

from collections import Counter
from collections.abc import Iterator, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.schedule.logical_clock import Chain, Clock
from graphpipe.schedule.lowered import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceShared, Send, Transfer
from graphpipe.schedule.merge import check_all_start
from graphpipe.schedule.schedule import Schedule, Task
from graphpipe.schedule.task_numbers import Flow, TaskNumbers

Step = tuple[int, Action]
"""A device and what it does."""

_LAST = ("B", "W")
"""After these a micro-batch's gradients of parameters are complete."""


def lower(
    plan: Plan,
    schedule: Schedule,
    batch_size: int | None = None,
    forward_only: bool = False,
    gradient_edges: frozenset[int] | None = None,
) -> LoweredSchedule:
    """Return the schedule with its transfers and reductions.

    A consumer's samples, cut by its own micro-batch size and degree, are received from whichever replicas hold them.
    The total order is that of a logical clock: a task when it starts, its transfers when it ends. Where a backward is
    split, the gradients leave after the input half. A stage's `Reduce` comes when the last of its replicas has done its
    last backward or weight gradient. The exchanges of gradients that stages share come last of all, in order of
    `Plan.exchanges`: none of them keeps a device from its tasks.

    Args:
        plan: a sound plan.
        schedule: a sound schedule of the plan.
        batch_size: samples of the mini-batch; None is the plan's. Evaluation may use any other; then the last
            micro-batch may be short, and a replica without samples skips it.
        forward_only: evaluation: only the forwards of the schedule, or of as many micro-batches as there are.
        gradient_edges: positions in `plan.edges` along which gradients go back; None: those that the plan's
            graph says.

    Raises:
        InvalidInput: a batch size other than the plan's for training, or the schedule deadlocks.
    """
    size = plan.batch_size if batch_size is None else batch_size
    if size < 1 or (size != plan.batch_size and not forward_only):
        raise InvalidInput(
            f"is {size}, the plan was made for {plan.batch_size}",
            where="batch_size",
            remedy="Train with the plan's batch size (drop the last, smaller batch) or plan again.",
        )
    numbers = TaskNumbers(plan, size)
    tasks, chains = _forward_chains(plan, numbers) if forward_only else _scheduled_chains(schedule, numbers)
    flows = list(numbers.flows(frozenset() if forward_only else gradient_edges))
    clock = Clock(numbers.ticks(tasks))
    clock.run(chains, ((flow.source, flow.target) for flow in flows))
    check_all_start(plan, clock, chains, tasks)
    order = _total_order(plan, clock, tasks, _transfers(flows, clock, tasks))
    if not forward_only:
        shared = enumerate(plan.exchanges)
        order += [(device, ReduceShared(number)) for number, exchange in shared for device in exchange.devices]
    devices: list[list[Action]] = [[] for _ in plan.cluster.devices]
    for device, action in order:
        devices[device].append(action)
    return LoweredSchedule(devices=tuple(map(tuple, devices)), order=tuple(order), batch_size=size)


def _scheduled_chains(schedule: Schedule, numbers: TaskNumbers) -> tuple[dict[int, Task], list[Chain]]:
    tasks: dict[int, Task] = {}
    chains: list[Chain] = []
    for device, listed in enumerate(schedule.devices):
        numbered = {numbers.number(task, device): task for task in listed}
        tasks |= numbered
        chains.append(Chain(device=device, tasks=list(numbered)))
    return tasks, chains


def _forward_chains(plan: Plan, numbers: TaskNumbers) -> tuple[dict[int, Task], list[Chain]]:
    # A chain for every replica: the clock interleaves the stages of a device.
    tasks: dict[int, Task] = {}
    chains: list[Chain] = []
    for position, stage in enumerate(plan.stages):
        forwards = [Task("F", position, index) for index in range(numbers.counts[position])]
        for device in stage.devices:
            numbered = {numbers.number(task, device): task for task in forwards}
            numbered = {number: task for number, task in numbered.items() if numbers.samples[number]}
            tasks |= numbered
            chains.append(Chain(device=device, tasks=list(numbered)))
    return tasks, chains


def _transfers(flows: Sequence[Flow], clock: Clock, tasks: dict[int, Task]) -> dict[int, list[Transfer]]:
    # By producing task; in order of edge, then samples.
    found: dict[int, list[Transfer]] = {}
    device_of = clock.device_of
    for flow in flows:
        transfer = Transfer(
            flow.edge,
            "backward" if flow.backward else "forward",
            device_of[flow.source],
            device_of[flow.target],
            flow.samples,
            tasks[flow.source],
            tasks[flow.target],
        )
        found.setdefault(flow.source, []).append(transfer)
    return found


def _total_order(plan: Plan, clock: Clock, tasks: dict[int, Task], transfers: dict[int, list[Transfer]]) -> list[Step]:
    # At equal times what a task sends comes before what starts then and may need it.
    starts = [(start, 1, number) for number, start in clock.starts.items()]
    ends = [(start + clock.ticks[number], 0, number) for number, start in clock.starts.items()]
    left = Counter(task.stage for task in tasks.values() if task.kind in _LAST)
    order: list[Step] = []
    for _, starting, number in sorted(starts + ends):
        task = tasks[number]
        if starting:
            order.append((clock.device_of[number], Compute(task)))
            continue
        order += _messages(transfers.get(number, ()))
        if task.kind in _LAST:
            left[task.stage] -= 1
            if not left[task.stage] and plan.stages[task.stage].degree > 1:
                order += [(device, Reduce(task.stage)) for device in plan.stages[task.stage].devices]
    return order


def _messages(transfers: Sequence[Transfer]) -> Iterator[Step]:
    for transfer in transfers:
        yield transfer.source_device, Send(transfer)
        yield transfer.target_device, Receive(transfer)
