"""The bytes each device holds over time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from graphpipe.costs import TaskMemory
from graphpipe.costs.stage_memory import NORM_COPY_BYTES
from graphpipe.plans import Plan
from graphpipe.plans.device_memory import between_halves, stage_memory
from graphpipe.schedule import LoweredSchedule, StageTask
from graphpipe.simulator.message_buffers import Buffers, Moment
from graphpipe.trace import MemorySample, Span

Change = tuple[float, float]
"""Seconds, and the change in bytes that a device holds from then on."""


def memory_over_time(plan: Plan, spans: Sequence[Span], lowered: LoweredSchedule) -> tuple[MemorySample, ...]:
    """Return a sample for every change of the memory of a device, by device, then time.

    From the start a device holds the parameters, gradients and optimizer state of its stages, or its shards of them.
    A micro-batch's share of activations is held from the start of its forward to the end of its backward. What is
    offloaded is not there from the end of the copy out to the start of the copy back. A neighbour has it from the start
    of the copy out to the end of the copy back. If the backward is split, the end of the input half leaves what stays
    for the weight half (`between_halves`). What a backward recomputes is held while it runs.

    Without training, the buffers of all samples in flight are held from the start, and a forward adds only what
    it holds while it runs.

    A profiled cost table records what operators hold while they run, and then more is counted. Tasks hold the peak of
    their operators' temporaries (`TaskMemory`). Gradients of parameters are allocated by a stage's first backward.
    Receive buffers are held from the start of the receive, and send buffers until the receive is acknowledged (see
    `message_buffers`). At the optimizer's step there is a copy of gradients if they are few, for their norm
    (`NORM_COPY_BYTES`). Not counted are what an optimizer and the sum over replicas hold while they run, what a
    forward holds while it makes a sent output contiguous, and what kernels allocate inside.
    """
    changes: dict[int, list[Change]] = {device: [] for device in plan.used_devices}
    for stage in plan.stages:
        for device in stage.devices:
            memory = stage_memory(plan.cost_model, stage)
            held = memory.state if plan.trains else memory.resident(stage.in_flight / stage.degree)
            changes[device].append((0.0, held))
    steps = [memory_steps(plan, stage) for stage in range(len(plan.stages))]
    for span in spans:
        starting, ending = steps[span.stage].get(span.kind, (0.0, 0.0))
        changes[span.device] += [(span.start_seconds, starting)] if starting else []
        changes[span.device] += [(span.end_seconds, ending)] if ending else []
        if span.kind == "evict" and span.peer >= 0:
            changes[span.peer].append((span.start_seconds, span.bytes))
        elif span.kind == "fetch" and span.peer >= 0:
            changes[span.peer].append((span.end_seconds, -span.bytes))
    if plan.trains and plan.cost_model.op_bytes.has_temporaries:
        for device, own_changes in changes.items():
            own_changes += _profiled_changes(plan, lowered, device, [span for span in spans if span.device == device])
    return tuple(sample for device, own_changes in changes.items() for sample in _add_up(device, own_changes))


def memory_steps(plan: Plan, stage: int) -> dict[str, tuple[float, float]]:
    """Return the change in bytes that one device of a stage holds, at the start and end of each kind of task."""
    here = plan.stages[stage]
    samples, memory = here.micro_batch / here.degree, stage_memory(plan.cost_model, here)
    offloaded = memory.offloaded * samples
    if not plan.trains:
        transient = float(memory.transient)
        return {"F": (transient, -transient)}
    between = between_halves(plan.cost_model, here)
    held, again, waiting = memory.saved * samples, memory.recomputed, between.own * samples
    if not plan.cost_model.op_bytes.has_temporaries:  # otherwise counted as message buffers
        held, waiting = held + memory.received * samples, waiting + between.received * samples
    held += offloaded
    steps = {"F": (held, 0.0), "B": (again, -held - again), "I": (0.0, waiting - held), "W": (0.0, -waiting)}
    return steps | {"evict": (0.0, -offloaded), "fetch": (offloaded, 0.0)}


def _profiled_changes(plan: Plan, lowered: LoweredSchedule, device: int, spans: Sequence[Span]) -> list[Change]:
    changes: list[Change] = []
    seconds = {Moment(None, "start"): 0.0, Moment(None, "end"): max(span.end_seconds for span in spans)}
    first: set[int] = set()  # stages whose first backward, or weight half, has run
    worsts = {
        stage: TaskMemory.of(
            plan.costs_of(stage).op_bytes, here.ops, here.micro_batch / here.degree, here.recompute, here.offload
        )
        for stage, here in enumerate(plan.stages)
        if device in here.devices
    }
    for span in spans:
        kind, stage = span.kind, span.stage
        if kind == "optimizer" and (copied := _norm_bytes(plan, device)):
            changes += [(span.start_seconds, copied), (span.end_seconds, -copied)]
        if kind not in ("F", "B", "I", "W"):
            continue
        task = StageTask(kind, stage, span.micro_batch)
        seconds[Moment(task, "start")], seconds[Moment(task, "end")] = span.start_seconds, span.end_seconds
        temporary = worsts[stage].of_task(kind, first=stage not in first)
        if kind in ("B", "W") and stage not in first:
            first.add(stage)
            gradients = _gradient_bytes(plan, stage)
            changes += [(0.0, -gradients), (span.end_seconds, gradients)]
        changes += [(span.start_seconds, temporary), (span.end_seconds, -temporary)]
    changes += [(seconds[moment], count) for moment, count in Buffers.of(plan, lowered, device)]
    return [change for change in changes if change[1]]


def _gradient_bytes(plan: Plan, stage: int) -> float:
    # The table's state may be smaller than parameters and gradients together.
    costs, here = plan.costs_of(stage).parameter_bytes, plan.stages[stage]
    ops, shards = here.ops, here.degree if here.state == "layers" else 1
    return min(costs.gradients(ops), max(0.0, costs.state(ops) - costs.weights(ops))) / shards


def _norm_bytes(plan: Plan, device: int) -> float:
    """Return the bytes of the largest copy of gradients for a norm. A device copies those of one stage at a time."""
    first = (number for number, stage in enumerate(plan.stages) if device in stage.replicas[0])
    return max((count for stage in first if (count := _gradient_bytes(plan, stage)) <= NORM_COPY_BYTES), default=0.0)


def peak_of(changes: Iterable[Change]) -> float:
    """Return the most bytes that a device holds."""
    return max(total for _, total in _sums(changes))


def _add_up(device: int, changes: Iterable[Change]) -> Iterator[MemorySample]:
    return (MemorySample(device=device, seconds=seconds, bytes=total) for seconds, total in _sums(changes))


def _sums(changes: Iterable[Change]) -> Iterator[tuple[float, float]]:
    # Changes at the same time are summed first: freed bytes make room for new ones.
    total = 0.0
    for seconds, together in groupby(sorted(changes), key=itemgetter(0)):
        total += sum(change for _, change in together)
        yield seconds, max(0.0, total)  # Rounding may leave less than nothing, which a trace file refuses.
