"""The table of tuned plans: predicted beside measured."""

from dataclasses import dataclass

from graphpipe.plans import Plan
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.units import format_seconds

_COLUMNS = (
    Column(heading="plan", right=False),
    Column(heading="schedule", right=False, spare=1),
    Column(heading="stages"),
    Column(heading="micro-batch", spare=2),
    Column(heading="predicted"),
    Column(heading="measured"),
    Column(heading="steps", spare=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One plan."""

    plan: Plan
    """With its prediction."""
    asked: str
    """Settings that differ from those asked for, in words."""
    steps: int
    step_seconds: float | None
    """Measured; None if the plan did not run."""
    failed: bool


def trials_table(rows: list[TrialRow]) -> FittingTable:
    """Return a row for each plan, in the given order."""
    return FittingTable(columns=_COLUMNS, rows=[_row(row) for row in rows])


def _row(row: TrialRow) -> list[str]:
    plan = row.plan
    assert plan.prediction is not None
    sizes = sorted({stage.micro_batch for stage in plan.stages})
    measured = "failed" if row.failed else "not run"
    return [
        row.asked or "as asked",
        plan.schedule,
        str(len(plan.stages)),
        str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}",
        format_seconds(plan.prediction.step_seconds),
        measured if row.step_seconds is None else format_seconds(row.step_seconds),
        str(row.steps),
    ]
