"""Verifies lowered schedules. Derives everything again from the plan and its schedule, without code from `lower`."""

from collections.abc import Collection, Iterator

from graphpipe.plans import Plan, Stage
from graphpipe.plans.sharding import SampleRange
from graphpipe.plans.verify_memory import RELATIVE
from graphpipe.plans.verify_ranks import replica_of
from graphpipe.schedule.actions import (
    Action,
    Compute,
    Fetch,
    LoweredSchedule,
    Offload,
    Receive,
    ReceiveOffloaded,
    Reduce,
    ReduceTied,
    Send,
    SendOffloaded,
    Transfer,
)
from graphpipe.schedule.deadlock import find_deadlock
from graphpipe.schedule.schedule import Schedule, StageTask

Owner = tuple[tuple[int, ...], int]
"""The devices of a replica, and a micro-batch."""


def verify_lowered(
    plan: Plan, schedule: Schedule, lowered: LoweredSchedule, gradient_edges: frozenset[int] | None = None
) -> None:
    """Check the result of `lower` for a sound schedule of training. An error here is a bug of GraphPipe.

    1. Every device does the tasks of its schedule in order, except those for which it has no sample.
    2. Every sample of every edge goes once from the device that computes it to every task that needs it, and its
       gradient goes back. Each device that shares a replica gets all of it, from one device that shares the other one.
       It is sent after the task that made it and before the next task of that stage. It is received before the task
       that needs it. A value that several stages of one device read is sent to it once, and the gradients of these
       stages are all computed before their sum goes back.
    3. Two devices list the messages between them, in both directions, in the same order, so that a transport without
       tags can match them.
    4. The gradients of a stage are summed once per mini-batch: after its last backward in the mini-batch, and in a
       segment before its update.
    5. There is no deadlock, even if every message and every sum blocks all its devices until the last one takes part.

    6. A stage offloads a micro-batch right after the forward, and fetches it right before the task that precedes the
       backward. A micro-batch without a task in between stays. A neighbour that it offloads to lists both ends too, in
       the same order among all messages between the two devices.

    Raises:
        AssertionError: a check fails. The message names the device.
    """
    total = schedule.mini_batches * plan.batch_size
    assert lowered.batch_size == total, f"lowered for {lowered.batch_size} samples, not {total}"
    for device, listed in enumerate(lowered.devices):
        tasks = tuple(action.task for action in listed if isinstance(action, Compute))
        wanted = tuple(task for task in schedule.devices[device] if _has_samples(plan, task, device, total))
        assert tasks == wanted, f"device {device} does other tasks than its schedule lists"
        _check_place(device, listed)
        _check_left_out(device, listed)
        _check_sums(plan, schedule, device, listed)
        _check_copies(plan, device, listed)
    back = plan.gradient_edges if gradient_edges is None else gradient_edges
    whole = {task for tasks in schedule.devices for task in tasks if task.kind == "B"}
    _check_transfers(lowered, {it for edge in range(len(plan.edges)) for it in _needed(plan, edge, back, whole, total)})
    _check_pairs(plan, lowered)
    stuck = find_deadlock(plan, lowered)
    assert not stuck, f"if every message waits for both its ends, devices wait forever: {stuck}"


def _has_samples(plan: Plan, task: StageTask, device: int, total: int) -> bool:
    it = plan.stages[task.stage]
    first = task.micro_batch * it.micro_batch
    count, replica = min(it.micro_batch, total - first), it.devices.index(device) // it.tensor
    return task.kind == "U" or count * replica // it.degree < count * (replica + 1) // it.degree


def _check_place(device: int, listed: tuple[Action, ...]) -> None:
    made: dict[int, StageTask] = {}
    done: set[StageTask] = set()
    for action in listed:
        match action:
            case Compute(task):
                made[task.stage] = task
                done.add(task)
            case Send(transfer):
                task = transfer.source_task
                assert made.get(task.stage) == task, (
                    f"device {device} does not send the result of {task} right after it"
                )
            case Receive(transfer):
                late = transfer.target_task in done
                assert not late, f"device {device} receives an input of {transfer.target_task} after that task"
            case Reduce() | ReduceTied() | Offload() | Fetch() | ReceiveOffloaded() | SendOffloaded():
                pass


def _check_left_out(device: int, listed: tuple[Action, ...]) -> None:
    # What a message leaves out is in an earlier message of outputs, or in a later one of gradients.
    sent = [action.transfer for action in listed if isinstance(action, Send)]
    place = {(it.edge, it.direction, it.target_device, it.samples): at for at, it in enumerate(sent)}
    for at, it in enumerate(sent):
        for edge in it.without:
            other = place.get((edge, it.direction, it.target_device, it.samples))
            assert other is not None, f"device {device} leaves out values of {it}, but does not send edge {edge}"
            right = other < at if it.direction == "forward" else other > at
            assert right, f"device {device} sends {it} and edge {edge} in the wrong order"


def _check_sums(plan: Plan, schedule: Schedule, device: int, listed: tuple[Action, ...]) -> None:
    hosted = {number for number, stage in enumerate(plan.stages) if device in stage.devices}
    turns = range(schedule.mini_batches)
    wanted: dict[Reduce | ReduceTied, set[int]] = {
        Reduce(stage, turn): {stage}
        for stage in hosted
        if plan.trains and plan.stages[stage].degree > 1
        for turn in turns
    }
    wanted |= {
        ReduceTied(number, turn): hosted & {*tied.stages}
        for number, tied in enumerate(plan.tied_gradients)
        if device in tied.devices
        for turn in turns
    }
    sums = [action for action in listed if isinstance(action, Reduce | ReduceTied)]
    assert sorted(map(str, sums)) == sorted(map(str, wanted)), f"device {device} sums {sums}, not {[*wanted]}"
    for action in sums:
        place = listed.index(action)
        counts = {stage: -(-plan.batch_size // plan.stages[stage].micro_batch) for stage in hosted}
        added = {stage: (action.mini_batch + 1) * count for stage, count in counts.items()}
        for task in (it.task for it in listed[place:] if isinstance(it, Compute) and it.task.stage in wanted[action]):
            adding = task.kind in ("B", "I", "W") and task.micro_batch < added[task.stage]
            assert not adding, f"device {device} does {task} after {action}"
        for task in (it.task for it in listed[:place] if isinstance(it, Compute) and it.task.stage in wanted[action]):
            late = task.kind == "U" and task.micro_batch >= action.mini_batch
            assert not late, f"device {device} sums gradients ({action}) after the update that needs them, {task}"
            mixed = task.kind in ("B", "W") and task.micro_batch >= added[task.stage]
            assert not mixed, f"device {device} does {task} of the next mini-batch before {action}"


def _check_copies(plan: Plan, device: int, listed: tuple[Action, ...]) -> None:
    copies: dict[tuple[int, int], list[tuple[int, Action]]] = {}
    turns: dict[tuple[str, int, int], int] = {}
    count = 0  # tasks so far
    for action in listed:
        if isinstance(action, Compute) and action.task.kind != "U":
            turns[action.task.kind, action.task.stage, action.task.micro_batch] = count
            count += 1
        elif isinstance(action, Offload | Fetch):
            copies.setdefault((action.stage, action.micro_batch), []).append((count, action))
    for (kind, stage, micro_batch), turn in turns.items():
        if kind != "F":
            continue
        back = turns.get(("B", stage, micro_batch), turn)
        wanted = [(turn + 1, Offload(stage, micro_batch)), (back - 1, Fetch(stage, micro_batch))]
        wanted = wanted if plan.stages[stage].offload and back > turn + 1 else []
        made = copies.pop((stage, micro_batch), [])
        assert made == wanted, f"device {device} copies {made} of F{stage}.{micro_batch}, not {wanted}"
    assert not copies, f"device {device} copies what it does not compute: {copies}"


def _check_transfers(lowered: LoweredSchedule, needed: set[Transfer]) -> None:
    for kind, end in ((Send, "source_device"), (Receive, "target_device")):
        ends = [(n, it.transfer) for n, listed in enumerate(lowered.devices) for it in listed if isinstance(it, kind)]
        for device, transfer in ends:
            assert getattr(transfer, end) == device, f"device {device} lists a {kind.__name__} of another: {transfer}"
        transfers = [transfer for _, transfer in ends]
        assert len(transfers) == len({*transfers}), f"a {kind.__name__} is listed twice"
        assert {*transfers} == needed, f"{kind.__name__}: missing or too many: {sorted({*transfers} ^ needed)[:2]}"


def _check_pairs(plan: Plan, lowered: LoweredSchedule) -> None:
    between: dict[tuple[int, int], list[Transfer | tuple[bool, int, int, int]]] = {}
    for device, listed in enumerate(lowered.devices):
        for action in listed:
            if isinstance(action, Send | Receive):
                ends = {action.transfer.source_device, action.transfer.target_device}
                for other in ends - {device}:
                    between.setdefault((device, other), []).append(action.transfer)
            elif isinstance(action, Offload | Fetch) and (to := plan.stages[action.stage].offload_to):
                other = to[plan.stages[action.stage].devices.index(device)]
                message = isinstance(action, Offload), action.stage, action.micro_batch, device
                between.setdefault((device, other), []).append(message)
            elif isinstance(action, ReceiveOffloaded | SendOffloaded):
                message = isinstance(action, ReceiveOffloaded), action.stage, action.micro_batch, action.source_device
                between.setdefault((device, action.source_device), []).append(message)
                between.setdefault((action.source_device, device), [])
    for (one, other), transfers in between.items():
        assert transfers == between.get((other, one)), (
            f"devices {one} and {other} list their messages in different orders"
        )


def _needed(plan: Plan, edge: int, back: Collection[int], whole: set[StageTask], total: int) -> Iterator[Transfer]:
    """Yield every transfer along an edge, derived from the owners of each sample at both ends."""
    source, target, there_too = plan.edges[edge].source, plan.edges[edge].target, _brought(plan, edge)
    owners = [(_owner(plan, source, sample), _owner(plan, target, sample)) for sample in range(total)]
    begins = [at for at in range(total) if not at or owners[at] != owners[at - 1]]
    for begin, end in zip(begins, [*begins[1:], total], strict=True):
        (here, first), (there, second) = owners[begin]
        samples = SampleRange(begin, end)
        sent, read = StageTask("F", source, first), StageTask("F", target, second)
        for one, other in _routes(here, there):
            yield Transfer(edge, "forward", one, other, samples, sent, read, tuple(there_too) if one != other else ())
        if edge in back:
            sent, read = _back(target, second, whole), _back(source, first, whole)
            summed = tuple(n for n in there_too if _leads(plan, back, plan.edges[n].target, target))
            for other, one in _routes(there, here):
                yield Transfer(edge, "backward", other, one, samples, sent, read, summed if one != other else ())


def _routes(holding: tuple[int, ...], needing: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the device that sends and the one that receives, for each of the devices that share what needs values."""
    for rank, device in enumerate(needing):
        yield (device if device in holding else holding[rank % len(holding)]), device


def _brought(plan: Plan, edge: int) -> list[int]:
    """Return the earlier edges from the same stage that bring one of the same values to the same owners of samples."""
    source, target = plan.stages[plan.edges[edge].source], plan.stages[plan.edges[edge].target]
    earlier: list[int] = []
    for number, it in enumerate(plan.edges[:edge]):
        other = plan.stages[it.target]
        if it.source == plan.edges[edge].source and other.devices == target.devices:
            common = _read_whole(plan, source, target) & _read_whole(plan, source, other)
            earlier += [number] if common and other.micro_batch == target.micro_batch else []
    return earlier


def _read_whole(plan: Plan, source: Stage, target: Stage) -> set[tuple[str, str]]:
    whole = {op.name: op.output_bytes_per_sample for op in plan.graph.ops if op.name in source.ops}
    read = [edge for edge in plan.graph.edges if edge.source in whole and edge.target in target.ops]
    listed = {value for it in read if it.values for *_, value, count in it.reads if count}
    return listed | {
        (it.source, "") for it in read if not it.values and 0 < whole[it.source] <= it.bytes_per_sample * (1 + RELATIVE)
    }


def _leads(plan: Plan, back: Collection[int], start: int, end: int) -> bool:
    """Whether gradients go back from stage `end` to stage `start`, perhaps through others."""
    reached = {end}
    for number in sorted(back, key=lambda number: plan.edges[number].target, reverse=True):
        if plan.edges[number].target in reached:
            reached.add(plan.edges[number].source)
    return start in reached


def _back(stage: int, micro_batch: int, whole: set[StageTask]) -> StageTask:
    task = StageTask("B", stage, micro_batch)
    return task if task in whole else StageTask("I", stage, micro_batch)


def _owner(plan: Plan, stage: int, sample: int) -> Owner:
    it = plan.stages[stage]
    first = replica_of(plan, it, sample % plan.batch_size) * it.tensor
    return it.devices[first : first + it.tensor], sample // it.micro_batch
