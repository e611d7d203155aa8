"""The table of a plan's memory against its step."""

from collections.abc import Sequence

from graphpipe.planners.improve.memory_curve import CurvePoint
from graphpipe.report.content.memory_choices import memory_choices
from graphpipe.report.tables.styled_table import Column, FittingTable
from graphpipe.units import format_bytes, format_seconds

HEADINGS = ("memory", "step", "keeps", "recomputes", "offloads")


def memory_curve_table(points: Sequence[CurvePoint]) -> FittingTable:
    """Return a row for each point: the fullest device, the step, and what a micro-batch of all stages does."""
    return FittingTable(
        title="memory against step time, for these stages",
        columns=tuple(Column(heading=heading) for heading in HEADINGS),
        rows=curve_rows(points),
    )


def curve_rows(points: Sequence[CurvePoint]) -> list[list[str]]:
    """Return the cells under `HEADINGS`."""
    return [[format_bytes(it.memory_bytes), format_seconds(it.step_seconds), *_decisions(it)] for it in points]


def _decisions(point: CurvePoint) -> list[str]:
    if (choices := memory_choices(point.plan)) is None:
        return ["everything", "-", "-"]
    sums = (
        sum(stage.kept_bytes for stage in choices.stages),
        sum(stage.recomputed_bytes for stage in choices.stages),
        sum(stage.offloaded_bytes for stage in choices.stages),
    )
    return [format_bytes(count) if count else "-" for count in sums]
