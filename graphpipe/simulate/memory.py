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
    model, samples = plan.cost_model, [stage.micro_batch / stage.degree for stage in plan.stages]
    for stage in plan.stages:
        for device in stage.devices:
            changes[device].append((0.0, model.state_bytes(stage.ops)))
    held, again = (
        [of(stage.ops, stage.recompute) * count for stage, count in zip(plan.stages, samples, strict=True)]
        for of in (model.activation_bytes, model.recomputed_bytes)
    )
    kept = plan.costs.kept_for_weight_gradient
    freed_by = {"B": 1.0, "I": 1.0 - kept, "W": kept}
    for span in spans:
        if span.kind == "F":
            changes[span.device].append((span.start_seconds, held[span.stage]))
        if span.kind == "B" and again[span.stage]:
            changes[span.device].append((span.start_seconds, again[span.stage]))
            changes[span.device].append((span.end_seconds, -again[span.stage]))
        if freed := freed_by.get(span.kind):
            changes[span.device].append((span.end_seconds, -held[span.stage] * freed))
    return tuple(sample for device, found in changes.items() for sample in _add_up(device, found))


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
