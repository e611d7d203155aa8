"""The tables that compare planners, and a prediction with its measurement."""

from collections.abc import Sequence

from rich.table import Table

from graphpipe.report.content.summary import Outcome
from graphpipe.report.content.wording import KIND_WORDS, signed_seconds
from graphpipe.report.tables.styled_table import Column, FittingTable, new_table
from graphpipe.trace import Comparison
from graphpipe.units import format_bytes, format_seconds

COLUMNS = (
    Column(heading="planner", right=False),
    Column(heading="step"),
    Column(heading="against best"),
    Column(heading="samples/s", spare=1),
    Column(heading="stages", spare=5),
    Column(heading="depth", spare=4),
    Column(heading="micro-batch", spare=6),
    Column(heading="bubble", spare=2),
    Column(heading="peak", spare=1),
    Column(heading="gap", spare=7),
    Column(heading="search", spare=3),
)
POLICY_COLUMNS = (
    Column(heading="weights", right=False),
    Column(heading="delay"),
    Column(heading="versions", spare=1),
)
"""Shown if there are several weight policies: the updates by which gradients are late, and the memory of versions."""


def compare_table(outcomes: Sequence[Outcome]) -> FittingTable:
    """Return a row per planner, and per weight policy if there are several. The fastest mini-batch is 1.00x."""
    best = min((outcome.summary.mini_batch_seconds for outcome in outcomes if outcome.summary), default=0.0)
    rows = [_row(outcome, best) for outcome in outcomes]
    if all(outcome.weights == "flush" for outcome in outcomes):
        return FittingTable(columns=COLUMNS, rows=rows)
    columns = (COLUMNS[0], *POLICY_COLUMNS, *COLUMNS[1:])
    policies = [_policy(outcome) for outcome in outcomes]
    rows = [[row[0], *policy, *row[1:]] for row, policy in zip(rows, policies, strict=True)]
    return FittingTable(columns=columns, rows=rows)


def _policy(outcome: Outcome) -> list[str]:
    if outcome.summary is None:
        return [outcome.weights, "-", "-"]
    held = format_bytes(outcome.summary.versions_bytes) if outcome.summary.versions else "-"
    return [outcome.weights, str(max(outcome.summary.delay_updates, default=0)), held]


def _row(outcome: Outcome, best: float) -> list[str]:
    if (summary := outcome.summary) is None:
        return [outcome.planner, outcome.status]
    return [
        outcome.planner,
        format_seconds(summary.mini_batch_seconds),
        f"{summary.mini_batch_seconds / best:.2f}x" if best else "-",
        f"{summary.samples_per_second:,.1f}",
        str(summary.stages),
        str(summary.depth),
        str(summary.micro_batch),
        f"{summary.bubble_fraction:.1%}",
        format_bytes(max(summary.peak_bytes)),
        f"{summary.gap_percent:.1f}%",
        format_seconds(summary.search_seconds),
    ]


def measured_table(comparison: Comparison, stage_names: Sequence[str], rows: int = 8) -> Table:
    """Return predicted and measured seconds: of the whole step, then of the kinds of work that differ most."""
    table = new_table("Predicted against measured")
    for heading in ("what", "predicted", "measured", "times", "difference in all"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    change = signed_seconds(comparison.measured_step_seconds - comparison.predicted_step_seconds)
    predicted, measured = comparison.predicted_step_seconds, comparison.measured_step_seconds
    table.add_row("step", format_seconds(predicted), format_seconds(measured), "1", change, end_section=True)
    for one in comparison.differences[:rows]:
        table.add_row(
            f"{KIND_WORDS[one.kind]}, {stage_names[one.stage]}",
            format_seconds(one.predicted_seconds),
            format_seconds(one.measured_seconds),
            str(one.count),
            signed_seconds(one.total_seconds),
        )
    return table
