"""The table of stages whose replicas several devices share: what that spares them, and what it does not."""

from graphpipe.costs.ranks.degrees import dividing_sequence
from graphpipe.costs.ranks.shared_work import SharedWork, shared_work
from graphpipe.plans import Plan
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.units import format_seconds

COLUMNS = (
    Column(heading="stage", right=False),
    Column(heading="devices per replica"),
    Column(heading="alone"),
    Column(heading="shared"),
    Column(heading="whole on each"),
    Column(heading="sums"),
)
SEQUENCE = Column(heading="divide the sequence")
"""Shown if devices do: in how many of the stage's operators."""


def shared_work_table(plan: Plan) -> FittingTable:
    """Return the seconds of a forward and a backward at these stages: of one device alone, and of each that shares.

    `whole on each` is the share of what operators without a layout take, and `sums` that of exchanges between devices.
    """
    found = work_by_stage(plan)
    stages = {number: plan.stages[number] for number in found}
    dividing = {number: dividing_sequence(plan.graph, it.ops, it.tensor) for number, it in stages.items()}
    shown = any(dividing.values())
    rows = [
        [
            plan.stages[number].name,
            str(plan.stages[number].tensor),
            format_seconds(work.alone),
            format_seconds(work.total),
            f"{work.whole / work.total:.0%}" if work.total else "-",
            f"{work.sums / work.total:.0%}" if work.total else "-",
            *([f"{len(dividing[number])} of {len(plan.stages[number].ops)}"] if shown else []),
        ]
        for number, work in found.items()
    ]
    return FittingTable(title="what devices share", columns=(*COLUMNS, *([SEQUENCE] if shown else [])), rows=rows)


def work_by_stage(plan: Plan) -> dict[int, SharedWork]:
    """Return how devices share the stages whose replicas have several, by the stage's position."""
    return {
        number: shared_work(plan.cost_model, stage.ops, stage.replicas, stage.micro_batch / stage.degree)
        for number, stage in enumerate(plan.stages)
        if stage.tensor > 1
    }
