"""Verifies schedules. Derives everything again from the plan, and shares no code with schedulers and lowering."""

from collections import Counter
from dataclasses import dataclass

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.plans.sharding import SampleRange, sample_range
from graphpipe.plans.stage import PlanFields
from graphpipe.plans.verify_memory import check_memory, measured, most_load, received_bytes, saved_with_casts
from graphpipe.plans.verify_ranks import of_rank, replica_of
from graphpipe.schedule.schedule import Schedule, StageTask

_ROUNDING = 1e-6


def verify(plan: Plan, schedule: Schedule) -> None:
    """Check a schedule against its plan, which must be sound itself.

    1. Every device lists each task of the stages that it hosts once, and no other task. A backward is one task or two
       halves. It is one task at a stage that recomputes or offloads, or whose backward must be whole.
    2. The forwards, the input gradients and the weight gradients of a stage are in micro-batch order, and each comes
       after the one that it needs (condition C4 of GraphPipe). A whole backward is both gradients.
    3. A stage never has more samples in flight, from forward to weight gradient, than it allows. What waits between
       the halves of backwards fits in memory.
    4. The devices do not deadlock.
    5. Devices that share a replica do the same tasks in the same order.
    6. In a segment of several mini-batches, every stage updates its weights once per mini-batch, after the weight
       gradients of that mini-batch and before those of the next.

    A plan that does not train has only forwards. How far they may run ahead is said by credits (`schedule.credits`).

    Raises:
        InvalidInput: a check fails. The error names the device and the task.
        Infeasible: what waits between the halves of backwards does not fit.
    """
    if len(schedule.devices) != len(plan.cluster.devices):
        raise InvalidInput(
            f"lists {len(schedule.devices)} devices, the plan's cluster has {len(plan.cluster.devices)}",
            where=f"schedule '{schedule.name}'",
        )
    # Each reads all tasks, so they are found once.
    mini_batches, updates = schedule.mini_batches, schedule.updates
    sound: dict[tuple[int, ...], tuple[StageTask, ...]] = {}
    for device, tasks in enumerate(schedule.devices):
        where = f"schedule '{schedule.name}', device '{plan.cluster.devices[device].name}'"
        hosted = tuple(number for number, stage in enumerate(plan.stages) if device in stage.devices)
        if sound.get(hosted) == tasks:  # The same tasks as another replica's.
            continue
        listed = Counter(tasks)
        expected = _expected_tasks(plan, hosted, listed, mini_batches)
        if updates:
            expected |= {StageTask("U", stage, turn) for stage in hosted for turn in range(mini_batches)}
        _check_complete(listed, expected, where)
        for stage in hosted:
            _check_whole(plan, stage, tasks, where)
            _check_order(plan, stage, [task for task in tasks if task.stage == stage], where)
        sound[hosted] = tasks
    _check_ranks(plan, schedule)
    _check_progress(plan, schedule, mini_batches * plan.batch_size)
    check_halves(plan, schedule)


def check_halves(plan: Plan, schedule: Schedule) -> None:
    """Check that every device has memory for what waits between the halves of backwards.

    The plan itself is checked with all its samples in flight. With gradients, a sample between the halves may need more
    than before them.

    Raises:
        Infeasible: a device has too little. The missing bytes are given.
    """
    more: dict[int, float] = {}
    for device, tasks in enumerate(schedule.devices):
        split = {task.stage for task in tasks if task.kind == "I"}
        held = {number: _sample_bytes(plan, number) for number in split}
        stages = {number: plan.stages[number] for number in split}
        now = -sum(held[number][0] * stage.in_flight / stage.degree for number, stage in stages.items())
        for task in (task for task in tasks if task.stage in split):
            before, between = held[task.stage]
            change = {"F": before, "B": -before, "I": between - before, "W": -between}.get(task.kind, 0.0)
            now += change * stages[task.stage].micro_batch / stages[task.stage].degree
            more[device] = max(more.get(device, 0.0), now)
    if any(count > 0 for count in more.values()):
        check_memory(plan, more)


def _check_ranks(plan: Plan, schedule: Schedule) -> None:
    """The devices that share a replica do the same tasks in the same order, because they sum values inside them."""
    for stage in (stage for stage in plan.stages if stage.tensor > 1):
        for first, *others in stage.replicas:
            for other in others:
                if schedule.devices[other] != schedule.devices[first]:
                    names = (plan.cluster.devices[device].name for device in (first, other))
                    what = (
                        f"'{next(names)}' and '{next(names)}' share a replica of stage '{stage.name}', but their tasks"
                    )
                    raise InvalidInput(f"{what} differ", where=f"schedule '{schedule.name}'")


def _expected_tasks(
    plan: Plan, hosted: tuple[int, ...], listed: Counter[StageTask], mini_batches: int
) -> set[StageTask]:
    return {
        task
        for stage in hosted
        for index in range(mini_batches * -(-plan.batch_size // plan.stages[stage].micro_batch))
        for task in _expected(stage, index, listed, trains=plan.trains)
    }


def _check_complete(listed: Counter[StageTask], expected: set[StageTask], where: str) -> None:
    for task, times in listed.items():
        if task.kind in ("I", "W") and (whole := StageTask("B", task.stage, task.micro_batch)) in listed:
            raise InvalidInput(f"lists {task} beside {whole}: a backward is whole or in two halves", where=where)
        if task not in expected:
            raise InvalidInput(f"lists {task}, which is not a task of a stage on this device", where=where)
        if times > 1:
            raise InvalidInput(f"lists {task} {times} times", where=where)
    if missing := sorted(expected - listed.keys()):
        raise InvalidInput(f"does not list {missing[0]} ({len(missing)} tasks are missing)", where=where)


def _expected(stage: int, index: int, listed: Counter[StageTask], *, trains: bool) -> tuple[StageTask, ...]:
    if not trains:
        return (StageTask("F", stage, index),)
    forward, whole = StageTask("F", stage, index), StageTask("B", stage, index)
    halves = StageTask("I", stage, index), StageTask("W", stage, index)
    return (forward, *halves) if any(half in listed for half in halves) else (forward, whole)


def _check_whole(plan: Plan, stage: int, tasks: tuple[StageTask, ...], where: str) -> None:
    halves = [task for task in tasks if task.stage == stage and task.kind in ("I", "W")]
    if halves and plan.stages[stage].backward == "whole":
        raise InvalidInput(
            f"lists {halves[0]}, but the plan requires whole backwards of stage '{plan.stages[stage].name}'",
            where=where,
            remedy="List B, or set the stage's backward to 'auto'.",
        )
    away = "offloads" if plan.stages[stage].offload else ""
    if halves and (again := "recomputes" if plan.stages[stage].recompute != "none" else away):
        raise InvalidInput(
            f"lists {halves[0]}, but stage '{plan.stages[stage].name}' {again}: its backwards are whole",
            where=where,
            remedy="List B, or keep all activations: between two halves what came back would stay in memory.",
        )


def _check_order(plan: Plan, stage: int, tasks: list[StageTask], where: str) -> None:
    allowed = plan.stages[stage].in_flight
    # The next micro-batch of each kind. A whole backward B counts as both I and W.
    following = {"F": 0, "I": 0, "W": 0}
    updated, count = 0, -(-plan.batch_size // plan.stages[stage].micro_batch)
    kept = _kept_share(plan, stage) if any(task.kind == "I" for task in tasks) else 0.0
    for task in tasks:
        if task.kind == "U":
            if task.micro_batch != updated or following["W"] != (updated + 1) * count:
                what = f"{task} does not come between the weight gradients of its mini-batch and those of the next"
                raise InvalidInput(what, where=where)
            updated += 1
            continue
        if task.kind in ("B", "W") and task.micro_batch // count != updated:
            raise InvalidInput(f"{task} comes before U{stage}.{updated}", where=where)
        for kind in ("I", "W") if task.kind == "B" else (task.kind,):
            if task.micro_batch != following[kind]:
                raise InvalidInput(f"{task} comes before {task.kind}{stage}.{following[kind]}", where=where)
            following[kind] += 1
        for kind, earlier in (("I", "F"), ("W", "I")):
            if following[kind] > following[earlier]:
                raise InvalidInput(f"{task} comes before {earlier}{stage}.{task.micro_batch}", where=where)
        samples = _held_samples(plan, stage, following, kept) if plan.trains else 0
        if samples > allowed + _ROUNDING:
            raise InvalidInput(
                f"with {task}, {samples:g} samples are in flight at stage '{plan.stages[stage].name}', "
                f"which allows {allowed}",
                where=where,
                remedy="Raise the stage's in_flight or begin its backwards (and weight gradients) earlier.",
            )


def _held_samples(plan: Plan, stage: int, done: dict[str, int], kept: float) -> float:
    # Between the halves of its backward, a sample counts as the share of its activations that stays in memory.
    return plan.stages[stage].micro_batch * (done["F"] - done["I"] + kept * (done["I"] - done["W"]))


def _kept_share(plan: Plan, number: int) -> float:
    if (share := plan.costs.kept_for_weight_gradient) is not None:
        return share
    before, between = _sample_bytes(plan, number)
    return min(1.0, between / before) if before else 1.0


def _sample_bytes(plan: Plan, number: int) -> tuple[float, float]:
    """Return the bytes that a device of a stage keeps per sample before and between the halves of its backward."""
    stage = plan.stages[number]
    own, inside, replica = of_rank(plan, stage), {*stage.ops}, stage.micro_batch / stage.degree
    saved = {op: saved_with_casts(own, op, replica) for op in stage.ops}
    before = sum(saved.values()) + received_bytes(own, inside)
    if (share := own.costs.kept_for_weight_gradient) is not None:
        return before, before * share
    training = _training(own)
    kept: dict[tuple[str, str], float] = {}  # received values that a gradient of parameters needs
    arriving: dict[str, dict[tuple[str, str], float]] = {op: {} for op in stage.ops}
    readers: dict[str, set[str]] = {op: set() for op in stage.ops}
    back: dict[str, set[str]] = {op: set() for op in stage.ops}
    for edge in own.graph.edges:
        returned = [(value, count) for *_, value, count in edge.reads if value not in own.graph.one_way]
        if edge.source in inside:
            readers[edge.source].add(edge.target)
            known = arriving[edge.source]
            known |= {value: max(known.get(value, 0.0), count) for value, count in returned}
        elif edge.target in inside & training:
            kept |= {value: max(kept.get(value, 0.0), count) for *_, value, count in edge.reads}
        if edge.target in inside and returned:
            back[edge.target].add(edge.source)
    returning: set[str] = set()  # whose gradients lead back to another stage
    for op in (op for op in own.graph.order if op in inside):
        if back[op] - inside or back[op] & returning:
            returning.add(op)
    between = sum(kept.values())
    for op in stage.ops:
        gradients = sum(arriving[op].values())
        if op in returning:
            between += _op_between(own, op, replica, gradients, readers[op], training)
        else:  # All of it is left to the second half, with the gradients that enter it.
            enters = op in own.graph.differentiable and not readers[op] & inside - returning
            between += saved[op] + (gradients if enters else 0.0)
    return before, between


def _op_between(
    plan: PlanFields, op: str, replica: float, gradients: float, readers: set[str], training: set[str]
) -> float:
    it, per_sample, once = plan.graph[op], [0.0], [0.0]
    for kind in {device.type for device in plan.cluster.devices}:
        row = plan.costs.by_op[op, kind]
        if row.between_halves is not None:
            per_sample.append(row.between_halves.per_sample)
            once.append(row.between_halves.per_forward)
            continue
        held = measured(plan, op, row)
        output = min(it.output_bytes_per_sample, held.per_sample)
        stays = output if readers & training else 0.0
        if op in training:
            stays += held.per_sample - output + (gradients if readers else it.output_bytes_per_sample)
            once.append(held.per_forward)
        per_sample.append(stays)
    return max(per_sample) * most_load(plan, op) + max(once) / replica


def _training(plan: PlanFields) -> set[str]:
    listed = {op.name for op in plan.graph.ops if op.parameters or op.parameter_bytes}
    return {op.name for op in plan.graph.ops if op.trainable and (op.name in listed or not listed)}


@dataclass(frozen=True, slots=True)
class _Progress:
    """How many forwards and backwards (or input halves) each device of each stage has done."""

    plan: Plan
    samples: int
    """Samples of all mini-batches."""
    done: dict[str, list[list[int]]]
    """Number of forwards and backwards, by kind, stage and place among its devices."""

    def may_start(self, task: StageTask, device: int) -> bool:
        """Return whether all samples that the task reads have been computed."""
        plan, stage = self.plan, self.plan.stages[task.stage]
        if task.kind == "U":
            return all(self._gradients_done(other, task.micro_batch) for other in self._summed_with(task.stage))
        here = sample_range(
            self.samples, stage.micro_batch, stage.degree, task.micro_batch, stage.devices.index(device) // stage.tensor
        )
        if task.kind == "F":
            return all(self._holds("F", other, here) for other in plan.predecessors[task.stage])
        # A weight gradient only needs tensors of its own stage.
        return task.kind == "W" or all(self._holds("B", other, here) for other in plan.gradient_sources[task.stage])

    def count(self, task: StageTask, device: int) -> None:
        """Count a task as done."""
        place = self.plan.stages[task.stage].devices.index(device)
        kinds = {"F": ("F",), "B": ("B", "W"), "I": ("B",), "W": ("W",), "U": ()}[task.kind]
        for kind in kinds:
            self.done[kind][task.stage][place] += 1

    def _summed_with(self, stage: int) -> set[int]:
        own = {name for op in self.plan.stages[stage].ops for name in self.plan.graph[op].parameters}
        return {
            number
            for number, other in enumerate(self.plan.stages)
            if number == stage or any(own.intersection(self.plan.graph[op].parameters) for op in other.ops)
        }

    def _gradients_done(self, stage: int, mini_batch: int) -> bool:
        it = self.plan.stages[stage]
        wanted = (mini_batch + 1) * -(-self.plan.batch_size // it.micro_batch)
        return all(done >= wanted for done in self.done["W"][stage])

    def _holds(self, kind: str, stage: int, samples: SampleRange) -> bool:
        # One probe in each replica's share that overlaps these samples. All devices that share it must be done.
        it, done = self.plan.stages[stage], self.done[kind][stage]
        share = max(1, (self.plan.batch_size % it.micro_batch or it.micro_batch) // it.degree)
        for sample in {*range(samples.start, samples.stop, share), samples.stop - 1} if samples else ():
            first = replica_of(self.plan, it, sample % self.plan.batch_size) * it.tensor
            if min(done[first : first + it.tensor]) <= sample // it.micro_batch:
                return False
        return True


def _check_progress(plan: Plan, schedule: Schedule, samples: int) -> None:
    progress = _Progress(plan, samples, {kind: [[0] * len(stage.devices) for stage in plan.stages] for kind in "FBW"})
    at = [0] * len(schedule.devices)
    while _sweep(schedule, progress, at):
        pass
    stuck = [(device, tasks[at[device]]) for device, tasks in enumerate(schedule.devices) if at[device] < len(tasks)]
    if stuck:
        waiting = ", ".join(f"{plan.cluster.devices[device].name} at {task}" for device, task in stuck[:4])
        raise InvalidInput(
            f"the devices wait for each other forever: {waiting}{', ...' if len(stuck) > 4 else ''}",
            where=f"schedule '{schedule.name}'",
            remedy="Raise the in_flight samples of the stages before those that wait, or reorder their tasks.",
        )


def _sweep(schedule: Schedule, progress: _Progress, at: list[int]) -> bool:
    moved = False
    for device, tasks in enumerate(schedule.devices):
        while at[device] < len(tasks) and progress.may_start(tasks[at[device]], device):
            progress.count(tasks[at[device]], device)
            at[device] += 1
            moved = True
    return moved
