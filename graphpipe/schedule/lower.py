"""Lowers a schedule to the actions of every device: tasks, transfers and reductions in an order without deadlock."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.joint_edges import JointEdges, joint_edges
from graphpipe.schedule.actions import Action, Compute, LoweredSchedule, Receive, Reduce, ReduceTied, Send, Transfer
from graphpipe.schedule.credits import Credits
from graphpipe.schedule.logical_clock import LogicalClock, TaskChain
from graphpipe.schedule.merge import check_all_start
from graphpipe.schedule.offloading import with_copies
from graphpipe.schedule.schedule import Schedule, StageTask
from graphpipe.schedule.task_numbers import Flow, TaskNumbers, update_waits

DeviceAction = tuple[int, Action]
"""A device and one of its actions."""

_LAST = ("B", "W")
"""The kinds of tasks that complete the parameter gradients of a micro-batch."""


def lower(
    plan: Plan,
    schedule: Schedule,
    batch_size: int | None = None,
    forward_only: bool = False,
    gradient_edges: frozenset[int] | None = None,
) -> LoweredSchedule:
    """Return the schedule with its transfers and reductions.

    A consumer receives its samples, cut by its own micro-batch size and degree, from the replicas that hold them. A
    logical clock gives the total order: a task stands at its start, its transfers stand at its end. If a backward is
    split, its gradients leave after the input half. The `Reduce` of a stage comes after the last backward or weight
    gradient of all its replicas. Stages that share parameters sum their gradients at the end, in the order of
    `Plan.tied_gradients`, so that these sums do not delay a task. In a segment, both sums belong to a mini-batch, and
    come before its updates.

    Args:
        plan: a sound plan.
        schedule: a sound schedule of the plan, or of a segment of several mini-batches.
        batch_size: samples of all mini-batches. None takes the plan's times their number. Evaluation may take any
            other. A replica without samples of a short last micro-batch skips it.
        forward_only: for evaluation: do the forwards of all micro-batches, and no backwards. A stage is only so far
            ahead of its consumers as its credits allow (`Credits`). A plan that does not train is always lowered so.
        gradient_edges: positions in `plan.edges` along which gradients go back. None takes those that the plan's graph
            gives.

    Raises:
        InvalidInput: training with another batch size than the plan's, or the schedule deadlocks.
    """
    forward_only = forward_only or not plan.trains
    planned = plan.batch_size * schedule.mini_batches
    size = planned if batch_size is None else batch_size
    if size < 1 or (size != planned and not forward_only):
        raise InvalidInput(
            f"is {size}, the plan was made for {planned}",
            where="batch_size",
            remedy="Train with the plan's batch size (drop the last, smaller batch) or plan again.",
        )
    numbers = TaskNumbers(plan, size)
    tasks, chains = _forward_chains(plan, numbers) if forward_only else _scheduled_chains(schedule, numbers)
    flows = list(numbers.flows(frozenset() if forward_only else gradient_edges))
    clock, credit = LogicalClock(numbers.ticks(tasks)), Credits(plan, numbers) if forward_only else None
    waits = [(flow.source, flow.target) for flow in flows]
    waits += update_waits(plan, tasks) if schedule.updates and not forward_only else ()
    clock.run(chains, waits if credit is None else [*waits, *credit.flows()])
    check_all_start(plan, clock, chains, tasks)
    transfers = _transfers(flows, clock, tasks, _joint_edges(plan, gradient_edges))
    order = _total_order(plan, clock, tasks, transfers)
    if not forward_only and not schedule.updates:
        shared = enumerate(plan.tied_gradients)
        order += [(device, ReduceTied(number)) for number, tied in shared for device in tied.devices]
    if not forward_only:
        order = with_copies(plan, order)
    devices: list[list[Action]] = [[] for _ in plan.cluster.devices]
    for device, action in order:
        devices[device].append(action)
    return LoweredSchedule(
        devices=tuple(map(tuple, devices)),
        order=tuple(order),
        batch_size=size,
        awaited={} if credit is None else credit.awaited(transfers.values()),
    )


def _scheduled_chains(schedule: Schedule, numbers: TaskNumbers) -> tuple[dict[int, StageTask], list[TaskChain]]:
    tasks: dict[int, StageTask] = {}
    chains: list[TaskChain] = []
    for device, listed in enumerate(schedule.devices):
        numbered = {numbers.number(task, device): task for task in listed}
        numbered = {number: task for number, task in numbered.items() if numbers.samples[number] or task.kind == "U"}
        tasks |= numbered
        chains.append(TaskChain(device=device, tasks=list(numbered)))
    return tasks, chains


def _forward_chains(plan: Plan, numbers: TaskNumbers) -> tuple[dict[int, StageTask], list[TaskChain]]:
    # One chain per replica. The clock interleaves the stages of a device.
    tasks: dict[int, StageTask] = {}
    chains: list[TaskChain] = []
    for position, stage in enumerate(plan.stages):
        forwards = [StageTask("F", position, index) for index in range(numbers.counts[position])]
        for device in stage.devices:
            numbered = {numbers.number(task, device): task for task in forwards}
            numbered = {number: task for number, task in numbered.items() if numbers.samples[number]}
            tasks |= numbered
            chains.append(TaskChain(device=device, tasks=list(numbered)))
    return tasks, chains


def _joint_edges(plan: Plan, gradient_edges: frozenset[int] | None) -> JointEdges:
    if gradient_edges is None:
        return plan.joint_edges
    return joint_edges(plan.graph, plan.stages, plan.edges, gradient_edges)


def _transfers(
    flows: Sequence[Flow], clock: LogicalClock, tasks: dict[int, StageTask], joint: JointEdges
) -> dict[int, list[Transfer]]:
    # By producing task, in the order of edges, then samples.
    transfers: dict[int, list[Transfer]] = {}
    device_of = clock.device_of
    for flow in flows:
        source, target = device_of[flow.source], device_of[flow.target]
        transfer = Transfer(
            flow.edge,
            "backward" if flow.backward else "forward",
            source,
            target,
            flow.samples,
            tasks[flow.source],
            tasks[flow.target],
            joint.without(flow.edge, backward=flow.backward) if source != target else (),
        )
        transfers.setdefault(flow.source, []).append(transfer)
    return transfers


def _total_order(
    plan: Plan, clock: LogicalClock, tasks: dict[int, StageTask], transfers: dict[int, list[Transfer]]
) -> list[DeviceAction]:
    # At equal times transfers come before task starts, because a task that starts may need the transfer. An update
    # takes no logical time. It comes between them: after the sums that it needs, before tasks that read its weights.
    starts = [(start, 1 if tasks[number].kind == "U" else 2, number) for number, start in clock.starts.items()]
    ends = [(time + clock.ticks[number], 0, number) for time, turn, number in starts if turn == 2]
    sums = _Sums(plan, tasks.values())
    order: list[DeviceAction] = []
    for _, starting, number in sorted(starts + ends):
        task = tasks[number]
        if starting:
            order.append((clock.device_of[number], Compute(task)))
            continue
        order += _messages(transfers.get(number, ()))
        if task.kind in _LAST:
            order += sums.after(task)
    return order


class _Sums:
    """Finds the sums of gradients that follow a task: those for which no gradient is missing any more."""

    def __init__(self, plan: Plan, tasks: Collection[StageTask]) -> None:
        self._plan = plan
        self._counts = [plan.micro_batches(stage) for stage in range(len(plan.stages))]
        self._left = Counter(self._key(task) for task in tasks if task.kind in _LAST)
        # Without updates, the sums of shared gradients come at the very end.
        self._tied = plan.tied_gradients if any(task.kind == "U" for task in tasks) else ()

    def after(self, task: StageTask) -> Iterator[DeviceAction]:
        stage, mini_batch = key = self._key(task)
        self._left[key] -= 1
        if self._left[key]:
            return
        if self._plan.stages[stage].degree > 1:
            yield from ((device, Reduce(stage, mini_batch)) for device in self._plan.stages[stage].devices)
        for number, tied in enumerate(self._tied):
            if stage in tied.stages and not any(self._left[other, mini_batch] for other in tied.stages):
                yield from ((device, ReduceTied(number, mini_batch)) for device in tied.devices)

    def _key(self, task: StageTask) -> tuple[int, int]:
        return task.stage, task.micro_batch // self._counts[task.stage]


def _messages(transfers: Sequence[Transfer]) -> Iterator[DeviceAction]:
    for transfer in transfers:
        yield transfer.source_device, Send(transfer)
        yield transfer.target_device, Receive(transfer)
