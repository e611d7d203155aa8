"""The trace spans of a simulated activity."""

from collections.abc import Iterable

from graphpipe.plans import Plan
from graphpipe.schedule import Reduce, ReduceTied, Transfer
from graphpipe.simulator.activities import HostCopy, MessageHandling, OptimizerStep, SimulatedWork, WeightGather
from graphpipe.simulator.engine import Interval
from graphpipe.trace import Span, SpanKind

Record = tuple[int, SpanKind, int, int, int, float]
"""Device, kind, stage, micro-batch, peer, bytes."""


def spans_of(plan: Plan, what: SimulatedWork, when: Interval) -> list[Span]:
    """Return a span for each device involved: two for a transfer, one per replica for a reduction."""
    return [
        Span(
            device=device,
            kind=kind,
            stage=stage,
            micro_batch=micro_batch,
            start_seconds=when.start,
            end_seconds=when.end,
            peer=peer,
            bytes=count,
        )
        for device, kind, stage, micro_batch, peer, count in _records(plan, what)
    ]


def _records(plan: Plan, what: SimulatedWork) -> list[Record]:
    if isinstance(what, Transfer):
        count = what.bytes(plan)
        source, target = what.source_task, what.target_task
        return [
            (what.source_device, "send", source.stage, source.micro_batch, what.target_device, count),
            (what.target_device, "receive", target.stage, target.micro_batch, what.source_device, count),
        ]
    if isinstance(what, Reduce):
        return [(device, "reduce", what.stage, -1, -1, 0.0) for device in plan.stages[what.stage].devices]
    if isinstance(what, ReduceTied):
        tied = plan.tied_gradients[what.tied_gradients]
        return [(device, "reduce", _first(plan, device, tied.stages), -1, -1, 0.0) for device in tied.devices]
    if isinstance(what, OptimizerStep):
        return [(what.device, "optimizer", _first(plan, what.device, range(len(plan.stages))), -1, -1, 0.0)]
    if isinstance(what, HostCopy):
        peer = -1 if what.neighbour is None else what.neighbour
        return [(what.device, what.kind, what.stage, what.micro_batch, peer, what.bytes)]
    if isinstance(what, MessageHandling | WeightGather):
        return []
    device, task = what
    if task.kind == "U":
        return [(device, "optimizer", task.stage, task.micro_batch, -1, 0.0)]
    return [(device, task.kind, task.stage, task.micro_batch, -1, 0.0)]


def _first(plan: Plan, device: int, stages: Iterable[int]) -> int:
    return next(stage for stage in stages if device in plan.stages[stage].devices)
