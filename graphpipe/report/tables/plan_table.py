"""The table of a plan, with a row per stage."""

from graphpipe.plans import Plan, Prediction, Stage
from graphpipe.report.content.wording import (
    abbreviate,
    device_names,
    offloaded_names,
    offloads,
    recomputed_names,
    recomputes,
    sharded_name,
    shares_replicas_name,
)
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.schedule.schedulers.registry import build_unverified, find_scheduler
from graphpipe.units import format_bytes, format_seconds

COLUMNS = (
    Column(heading="stage", right=False),
    Column(heading="operators", right=False, wraps=True, spare=1),
    Column(heading="devices", right=False),
    Column(heading="samples", spare=2),
    Column(heading="in flight", spare=4),
    Column(heading="forward", spare=3),
    Column(heading="backward", spare=3),
    Column(heading="memory"),
    Column(heading="feeds", right=False),
)
RECOMPUTES = Column(heading="recomputes", right=False, wraps=True, spare=2)
"""Shown if a stage recomputes."""
OFFLOADS = Column(heading="offloads", right=False, wraps=True, spare=2)
"""Shown if a stage offloads."""
SHARDS = Column(heading="shards", right=False, spare=2)
"""Shown if the replicas of a stage shard their state."""
RANKS = Column(heading="tensor", spare=2)
"""Shown if several devices share a replica of a stage: how many."""
HALVES = Column(heading="backwards", right=False, spare=2)
"""Shown if the schedule splits the backward of a stage."""


def plan_table(plan: Plan, prediction: Prediction) -> FittingTable:
    """Return the operators, devices, task seconds and device memory of every stage.

    `samples` is the micro-batch: the replicas times the samples of each. `forward` and `backward` are for one
    micro-batch.
    """
    split = find_scheduler(plan.schedule).splits_backward
    splits = build_unverified(plan).split_stages if split else frozenset[int]()
    return FittingTable(
        title=f"{plan.graph.name} on {plan.cluster.name}: mini-batch {plan.batch_size}, {plan.schedule}",
        columns=(
            *COLUMNS,
            *([RECOMPUTES] if recomputes(plan) else []),
            *([OFFLOADS] if offloads(plan) else []),
            *([SHARDS] if plan.shards_state else []),
            *([RANKS] if plan.shares_replicas else []),
            *([HALVES] if splits else []),
        ),
        rows=[
            [*_row(plan, number, prediction), *([_backwards(number, splits)] if splits else [])]
            for number in range(len(plan.stages))
        ],
    )


def _row(plan: Plan, number: int, prediction: Prediction) -> list[str]:
    stage = plan.stages[number]
    tasks = plan.task_seconds(number, stage.devices[0])
    row = [
        stage.name,
        abbreviate(stage.ops),
        device_names(plan, stage),
        _samples(stage),
        str(stage.in_flight),
        format_seconds(tasks.forward),
        format_seconds(tasks.backward),
        _memory(plan, stage, prediction),
        ", ".join(plan.stages[other].name for other in plan.successors[number]) or "-",
    ]
    row += [recomputed_names(stage.recompute)] if recomputes(plan) else []
    row += [offloaded_names(plan, stage)] if offloads(plan) else []
    row += [sharded_name(stage.state)] if plan.shards_state else []
    return [*row, shares_replicas_name(stage)] if plan.shares_replicas else row


def _backwards(number: int, splits: frozenset[int]) -> str:
    return "in halves" if number in splits else "whole"


def _samples(stage: Stage) -> str:
    split = f"{stage.degree} x {stage.micro_batch // stage.degree}"
    return split if stage.degree > 1 else str(stage.micro_batch)


def _memory(plan: Plan, stage: Stage, prediction: Prediction) -> str:
    # If a device hosts several stages, the row of each stage shows the peak of the whole device.
    fullest = max(stage.devices, key=lambda device: prediction.peak_bytes[device])
    capacity = plan.cluster.type_of(fullest).memory_bytes
    return f"{format_bytes(prediction.peak_bytes[fullest])} ({prediction.peak_bytes[fullest] / capacity:.0%})"
