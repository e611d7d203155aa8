"""The bytes each device holds over time."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from graphpipe.costs import task_bytes
from graphpipe.plans import Plan
from graphpipe.schedule import LoweredSchedule, Task
from graphpipe.simulator.message_buffers import Buffers, Moment
from graphpipe.trace import MemorySample, Span

Change = tuple[float, float]
"""Seconds, and by how many bytes a device holds more or less from then on."""


def memory_over_time(plan: Plan, spans: Sequence[Span], lowered: LoweredSchedule) -> tuple[MemorySample, ...]:
    """Return a sample for every change of what a device holds, by device, then time.

    From the start a device holds the parameters, gradients and optimizer state of its stages, each replica in whole.
    A micro-batch's share of activations is held from the start of its forward to the end of its backward. Where the
    backward is split, the end of the input half frees what is not `kept_for_weight_gradient`. What a backward computes
    again is held while it runs.

    Where the cost table knows what operators hold while they run, because it was profiled, memory is told in full:
    tasks then take what their operators need at the worst moment (`task_bytes`), gradients of parameters come with a
    stage's first backward, and messages have buffers (`buffers`) from when their receive begins, or until they are
    known to be gone. Not told: what an optimizer and the sum over replicas hold while they run, copies of values that
    do not lie in one piece, and what kernels need inside.
    """
    changes: dict[int, list[Change]] = {device: [] for device in plan.used_devices}
    for stage in plan.stages:
        for device in stage.devices:
            changes[device].append((0.0, plan.cost_model.state_bytes(stage.ops)))
    steps = [memory_steps(plan, stage) for stage in range(len(plan.stages))]
    for span in spans:
        starting, ending = steps[span.stage].get(span.kind, (0.0, 0.0))
        changes[span.device] += [(span.start_seconds, starting)] if starting else []
        changes[span.device] += [(span.end_seconds, ending)] if ending else []
    if plan.cost_model.knows_temporaries:
        for device, found in changes.items():
            found += _in_full(plan, lowered, device, [span for span in spans if span.device == device])
    return tuple(sample for device, found in changes.items() for sample in _add_up(device, found))


def memory_steps(plan: Plan, stage: int) -> dict[str, tuple[float, float]]:
    """Return by how many bytes each kind of task changes what one device of a stage holds: as it starts, as it ends."""
    here, model, kept = plan.stages[stage], plan.cost_model, plan.costs.kept_for_weight_gradient
    samples = here.micro_batch / here.degree
    recompute = here.recompute
    held = model.activation_bytes(here.ops, recompute) * samples
    if model.knows_temporaries:
        held -= model.activation_bytes(here.ops, "full") * samples  # what was received is in buffers
    again = model.recomputed_bytes(here.ops, recompute) * samples
    return {"F": (held, 0.0), "B": (again, -held - again), "I": (0.0, -held * (1.0 - kept)), "W": (0.0, -held * kept)}


def _in_full(plan: Plan, lowered: LoweredSchedule, device: int, spans: Sequence[Span]) -> list[Change]:
    found: list[Change] = []
    seconds = {Moment(None, "start"): 0.0, Moment(None, "end"): max(span.end_seconds for span in spans)}
    first: set[int] = set()  # stages whose first backward, or weight half, has been
    worsts = {
        stage: task_bytes(plan.cost_model, here.ops, here.micro_batch / here.degree, here.recompute)
        for stage, here in enumerate(plan.stages)
        if device in here.devices
    }
    for span in spans:
        kind, stage = span.kind, span.stage
        if kind not in ("F", "B", "I", "W"):
            continue
        task = Task(kind, stage, span.micro_batch)
        seconds[Moment(task, "start")], seconds[Moment(task, "end")] = span.start_seconds, span.end_seconds
        worst = worsts[stage]
        temporary = worst.forward if kind == "F" else worst.backward
        if kind in ("B", "W") and stage not in first:
            first.add(stage)
            temporary, gradients = worst.first_backward, _gradient_bytes(plan, stage)
            found += [(0.0, -gradients), (span.end_seconds, gradients)]
        found += [(span.start_seconds, temporary), (span.end_seconds, -temporary)]
    found += [(seconds[moment], count) for moment, count in Buffers.of(plan, lowered, device)]
    return [change for change in found if change[1]]


def _gradient_bytes(plan: Plan, stage: int) -> float:
    # A table may hold less for state than parameters and gradients take.
    model, ops = plan.cost_model, plan.stages[stage].ops
    parameters = float(model.parameter_bytes[model.positions(ops)].sum()) - model.repeated_bytes(ops)
    return min(model.gradient_bytes(ops), max(0.0, model.state_bytes(ops) - parameters))


def _add_up(device: int, changes: Iterable[Change]) -> Iterator[MemorySample]:
    # At equal times what is freed makes room for what comes.
    total = 0.0
    for seconds, together in groupby(sorted(changes), key=itemgetter(0)):
        total += sum(change for _, change in together)
        yield MemorySample(device=device, seconds=seconds, bytes=total)
