"""Planners side by side, and a prediction beside its measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from graphpipe.report.look import new_table
from graphpipe.report.summary import Summary
from graphpipe.trace import Comparison
from graphpipe.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one planner came to."""

    planner: str
    status: Literal["ok", "infeasible", "timeout"]
    summary: Summary | None = None
    """None unless ok."""
    reason: str = ""
    """Why there is no plan."""


def compare_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a row per planner; the fastest plan of all is 1.00x."""
    table = new_table()
    table.add_column("planner")
    for heading in ("step", "against best", "samples/s", "stages", "depth", "micro-batch", "bubble", "peak", "search"):
        table.add_column(heading, justify="right")
    best = min((outcome.summary.step_seconds for outcome in outcomes if outcome.summary), default=0.0)
    for outcome in outcomes:
        if (found := outcome.summary) is None:
            table.add_row(outcome.planner, outcome.status)
            continue
        table.add_row(
            outcome.planner,
            format_seconds(found.step_seconds),
            f"{found.step_seconds / best:.2f}x" if best else "-",
            f"{found.samples_per_second:,.1f}",
            str(found.stages),
            str(found.depth),
            str(found.micro_batch),
            f"{found.bubble_fraction:.1%}",
            format_bytes(max(found.peak_bytes)),
            format_seconds(found.search_seconds),
        )
    return table


def measured_table(comparison: Comparison, stage_names: Sequence[str], rows: int = 8) -> Table:
    """Return predicted against measured: the whole step, then the kinds of work that differ most."""
    table = new_table("Predicted against measured")
    for heading in ("what", "predicted", "measured", "times", "difference in all"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    whole = comparison.measured_step_seconds - comparison.predicted_step_seconds
    predicted, measured = comparison.predicted_step_seconds, comparison.measured_step_seconds
    table.add_row("step", format_seconds(predicted), format_seconds(measured), "1", _signed(whole), end_section=True)
    for one in comparison.differences[:rows]:
        table.add_row(
            f"{_WORDS.get(one.kind, one.kind)}, {stage_names[one.stage]}",
            format_seconds(one.predicted_seconds),
            format_seconds(one.measured_seconds),
            str(one.count),
            _signed(one.total_seconds),
        )
    return table


_WORDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
