"""The bytes each device holds over time."""

from collections.abc import Sequence

from graphpipe.plan import Plan
from graphpipe.trace import MemorySample, Span


def memory_over_time(plan: Plan, spans: Sequence[Span]) -> tuple[MemorySample, ...]:
    """Return a sample for every change of what a device holds, by device, then time.

    From the start a device holds the parameters, gradients and optimizer state of its stages, each replica in whole.
    A micro-batch's share of activations is held from the start of its forward to the end of its backward. Where the
    backward is split, the end of the input half frees what is not `kept_for_weight_gradient`. What a backward computes
    again is held while it runs.
    """
    changes: dict[int, list[tuple[float, float]]] = {device: [] for device in plan.used_devices}
    for stage in plan.stages:
        for device in stage.devices:
            changes[device].append((0.0, plan.cost_model.state_bytes(stage.ops)))
    steps = [memory_steps(plan, stage) for stage in range(len(plan.stages))]
    for span in spans:
        starting, ending = steps[span.stage].get(span.kind, (0.0, 0.0))
        changes[span.device] += [(span.start_seconds, starting)] if starting else []
        changes[span.device] += [(span.end_seconds, ending)] if ending else []
    return tuple(sample for device, found in changes.items() for sample in _add_up(device, found))


def memory_steps(plan: Plan, stage: int) -> dict[str, tuple[float, float]]:
    """Return by how many bytes each kind of task changes what one device of a stage holds: as it starts, as it ends."""
    here, model, kept = plan.stages[stage], plan.cost_model, plan.costs.kept_for_weight_gradient
    samples = here.micro_batch / here.degree
    held = model.activation_bytes(here.ops, here.recompute) * samples
    again = model.recomputed_bytes(here.ops, here.recompute) * samples
    return {"F": (held, 0.0), "B": (again, -held - again), "I": (0.0, -held * (1.0 - kept)), "W": (0.0, -held * kept)}


def _add_up(device: int, changes: list[tuple[float, float]]) -> list[MemorySample]:
    # At equal times what is freed comes first, except that the state is there before anything.
    state = [change for change in changes if change[0] == 0.0]
    samples: list[MemorySample] = []
    total = 0.0
    for seconds, change in state + sorted(change for change in changes if change[0] > 0.0):
        total += change
        if samples and samples[-1].seconds == seconds and change > 0:
            samples.pop()
        samples.append(MemorySample(device=device, seconds=seconds, bytes=total))
    return samples
