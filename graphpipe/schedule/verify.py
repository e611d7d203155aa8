"""Is a schedule sound? Everything is derived again from the plan; nothing is shared with schedulers or lowering."""

from collections import Counter
from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plan import Plan
from graphpipe.plan.sharding import SampleRange, sample_range
from graphpipe.schedule.schedule import Schedule, Task


def verify(plan: Plan, schedule: Schedule) -> None:
    """Check a schedule against its plan, which must be sound itself.

    On every device: each task of the stages it hosts once and no other; forwards and backwards of a stage in
    micro-batch order, each forward before its backward (condition C4 of GraphPipe); never more samples in flight than
    the stage allows. Over all devices: no deadlock.

    Raises:
        InvalidInput: names the device and the task at fault.
    """
    if len(schedule.devices) != len(plan.cluster.devices):
        raise InvalidInput(
            f"lists {len(schedule.devices)} devices, the plan's cluster has {len(plan.cluster.devices)}",
            where=f"schedule '{schedule.name}'",
        )
    for device, tasks in enumerate(schedule.devices):
        where = f"schedule '{schedule.name}', device '{plan.cluster.devices[device].name}'"
        hosted = [number for number, stage in enumerate(plan.stages) if device in stage.devices]
        _check_complete(plan, hosted, tasks, where)
        for stage in hosted:
            _check_order(plan, stage, [task for task in tasks if task.stage == stage], where)
    _check_progress(plan, schedule)


def _check_complete(plan: Plan, hosted: list[int], tasks: tuple[Task, ...], where: str) -> None:
    expected = {
        Task(kind, stage, index)
        for stage in hosted
        for index in range(plan.batch_size // plan.stages[stage].micro_batch)
        for kind in ("F", "B")
    }
    times = Counter(tasks)
    for task in tasks:
        if task not in expected:
            raise InvalidInput(f"lists {task}, which is no task of a stage on this device", where=where)
        if times[task] > 1:
            raise InvalidInput(f"lists {task} {times[task]} times", where=where)
    if missing := sorted(expected - times.keys()):
        raise InvalidInput(f"does not list {missing[0]} ({len(missing)} tasks are missing)", where=where)


def _check_order(plan: Plan, stage: int, tasks: list[Task], where: str) -> None:
    allowed, size = plan.stages[stage].in_flight, plan.stages[stage].micro_batch
    following = {"F": 0, "B": 0}
    for task in tasks:
        if task.micro_batch != following[task.kind]:
            raise InvalidInput(f"{task} comes before {task.kind}{stage}.{following[task.kind]}", where=where)
        following[task.kind] += 1
        if following["B"] > following["F"]:
            raise InvalidInput(f"{task} comes before F{stage}.{task.micro_batch}", where=where)
        samples = (following["F"] - following["B"]) * size
        if samples > allowed:
            raise InvalidInput(
                f"with {task}, {samples} samples are in flight at stage '{plan.stages[stage].name}', "
                f"which allows {allowed}",
                where=where,
                remedy="Raise the stage's in_flight or begin its backwards earlier.",
            )


@dataclass(frozen=True, slots=True)
class _Progress:
    """How many forwards and backwards of each stage each of its replicas has done."""

    plan: Plan
    done: dict[tuple[str, int, int], int]

    def may_start(self, task: Task, device: int) -> bool:
        """Whether all samples that the task reads are there."""
        plan, stage = self.plan, self.plan.stages[task.stage]
        here = sample_range(
            plan.batch_size, stage.micro_batch, stage.degree, task.micro_batch, stage.devices.index(device)
        )
        others = plan.predecessors[task.stage] if task.kind == "F" else plan.successors[task.stage]
        return all(self._holds(task.kind, other, here) for other in others)

    def _holds(self, kind: str, stage: int, samples: SampleRange) -> bool:
        # One probe in every share of a replica that the samples touch.
        size, degree = self.plan.stages[stage].micro_batch, self.plan.stages[stage].degree
        share = size // degree
        for sample in (*range(samples.start, samples.stop, share), samples.stop - 1):
            index, inside = divmod(sample, size)
            if self.done[kind, stage, inside // share] <= index:
                return False
        return True


def _check_progress(plan: Plan, schedule: Schedule) -> None:
    replicas = [(stage, replica) for stage, it in enumerate(plan.stages) for replica in range(it.degree)]
    progress = _Progress(plan, {(kind, *replica): 0 for kind in ("F", "B") for replica in replicas})
    at = [0] * len(schedule.devices)
    while _sweep(plan, schedule, progress, at):
        pass
    stuck = [(device, tasks[at[device]]) for device, tasks in enumerate(schedule.devices) if at[device] < len(tasks)]
    if stuck:
        waiting = ", ".join(f"{plan.cluster.devices[device].name} at {task}" for device, task in stuck[:4])
        raise InvalidInput(
            f"the devices wait for each other for ever: {waiting}{', ...' if len(stuck) > 4 else ''}",
            where=f"schedule '{schedule.name}'",
            remedy="Raise the in_flight samples of the stages before those that wait, or reorder their tasks.",
        )


def _sweep(plan: Plan, schedule: Schedule, progress: _Progress, at: list[int]) -> bool:
    moved = False
    for device, tasks in enumerate(schedule.devices):
        while at[device] < len(tasks) and progress.may_start(tasks[at[device]], device):
            task = tasks[at[device]]
            progress.done[task.kind, task.stage, plan.stages[task.stage].devices.index(device)] += 1
            at[device] += 1
            moved = True
    return moved
