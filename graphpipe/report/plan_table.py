"""A plan as a table: a row per stage."""

from collections.abc import Sequence
from itertools import groupby, takewhile

from rich.table import Table

from graphpipe.plan import Plan, Prediction, Stage
from graphpipe.report.look import new_table
from graphpipe.units import format_bytes, format_seconds


def plan_table(plan: Plan, prediction: Prediction) -> Table:
    """Return what every stage holds, where it runs, how long its tasks take and how much memory its devices need.

    Samples are those of a micro-batch, times the replicas that share it; forward and backward are of one micro-batch.
    """
    table = new_table(f"{plan.graph.name} on {plan.cluster.name}: mini-batch {plan.batch_size}, {plan.schedule}")
    # Where the terminal is narrow, the operators' names give way.
    table.add_column("stage", no_wrap=True)
    table.add_column("operators")
    table.add_column("devices", no_wrap=True)
    for heading in ("samples", "in flight", "forward", "backward", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("feeds", no_wrap=True)
    for number, stage in enumerate(plan.stages):
        tasks = plan.cost_model.task_seconds(stage.ops, stage.devices[0], stage.micro_batch / stage.degree)
        table.add_row(
            stage.name,
            _abbreviate(stage.ops),
            _device_names(plan, stage),
            _samples(stage),
            str(stage.in_flight),
            format_seconds(tasks.forward),
            format_seconds(tasks.backward),
            _memory(plan, stage, prediction),
            ", ".join(plan.stages[other].name for other in plan.successors[number]) or "-",
        )
    return table


def layout_table(plan: Plan) -> Table:
    """Return which rank runs what: rank i is the i-th device in use."""
    table = new_table("Layout")
    for heading in ("rank", "device", "stages"):
        table.add_column(heading)
    for rank, device in enumerate(plan.used_devices):
        hosted = [_seat(stage, device) for stage in plan.stages if device in stage.devices]
        table.add_row(str(rank), plan.cluster.devices[device].name, ", ".join(hosted))
    return table


def _samples(stage: Stage) -> str:
    split = f"{stage.degree} x {stage.micro_batch // stage.degree}"
    return split if stage.degree > 1 else str(stage.micro_batch)


def _seat(stage: Stage, device: int) -> str:
    replica = f" (replica {stage.devices.index(device) + 1} of {stage.degree})" if stage.degree > 1 else ""
    return f"{stage.name}{replica}"


def _abbreviate(names: Sequence[str]) -> str:
    # Runs of operators of one branch (what stands before the first dot), as they follow each other in the graph.
    runs = [list(run) for _, run in groupby(names, key=lambda name: name.split(".")[0] if "." in name else "")]
    texts = [", ".join(run) if len(run) <= 2 else f"{_span(run[0], run[-1])} ({len(run)})" for run in runs]
    return "\n".join(texts if len(texts) <= 4 else [*texts[:3], f"and {len(texts) - 3} more ({len(names)} in all)"])


def _device_names(plan: Plan, stage: Stage) -> str:
    # Neighbours are told by the first name and how the last one ends: node0/v100-0 .. 3.
    names = [plan.cluster.devices[device].name for device in stage.devices]
    first, last = stage.devices[0], stage.devices[-1]
    if len(names) > 1 and stage.devices == tuple(range(first, last + 1)):
        return _span(names[0], names[-1])
    return "\n".join(names if len(names) <= 4 else [*names[:3], f"and {len(names) - 3} more"])


def _span(first: str, last: str) -> str:
    # The last name without what it has in common with the first, up to a separator: a number is not cut in two.
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    return f"{first} .. {last[max(last.rfind(separator, 0, same) for separator in '-/:.') + 1 :]}"


def _memory(plan: Plan, stage: Stage, prediction: Prediction) -> str:
    # A device that hosts several stages holds them all: its peak is shown at each of them.
    fullest = max(stage.devices, key=lambda device: prediction.peak_bytes[device])
    capacity = plan.cluster.types[plan.cluster.devices[fullest].type].memory_bytes
    return f"{format_bytes(prediction.peak_bytes[fullest])} ({prediction.peak_bytes[fullest] / capacity:.0%})"
