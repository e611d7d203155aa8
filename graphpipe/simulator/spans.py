"""An activity that happened, as the devices involved record it."""

from collections.abc import Iterable

from graphpipe.plans import Plan
from graphpipe.schedule import Reduce, ReduceShared, Transfer
from graphpipe.simulator.activities import Doing, Handling, Update
from graphpipe.simulator.engine import Interval
from graphpipe.trace import Span, SpanKind

Record = tuple[int, SpanKind, int, int, int, float]
"""Device, kind, stage, micro-batch, peer, bytes."""


def spans_of(plan: Plan, what: Doing, when: Interval) -> list[Span]:
    """Return a span for each device that takes part: two of a transfer, one per replica of a reduction."""
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


def _records(plan: Plan, what: Doing) -> list[Record]:
    if isinstance(what, Transfer):
        count = plan.edges[what.edge].bytes_per_sample * len(what.samples)
        source, target = what.source_task, what.target_task
        return [
            (what.source_device, "send", source.stage, source.micro_batch, what.target_device, count),
            (what.target_device, "receive", target.stage, target.micro_batch, what.source_device, count),
        ]
    if isinstance(what, Reduce):
        return [(device, "reduce", what.stage, -1, -1, 0.0) for device in plan.stages[what.stage].devices]
    if isinstance(what, ReduceShared):
        exchange = plan.exchanges[what.exchange]
        return [(device, "reduce", _first(plan, device, exchange.stages), -1, -1, 0.0) for device in exchange.devices]
    if isinstance(what, Update):
        return [(what.device, "optimizer", _first(plan, what.device, range(len(plan.stages))), -1, -1, 0.0)]
    if isinstance(what, Handling):
        return []
    device, task = what
    return [(device, task.kind, task.stage, task.micro_batch, -1, 0.0)]


def _first(plan: Plan, device: int, stages: Iterable[int]) -> int:
    return next(stage for stage in stages if device in plan.stages[stage].devices)
