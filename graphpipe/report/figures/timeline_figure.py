"""The figure of the timeline: a plotly heatmap. `page/assets/timeline.js` fills its cells for the visible time range.

A cell is one pixel column of a row, so a step of 200,000 tasks draws as fast as one of 100. Zooming in fills the cells
again. A cell shows the task that takes most of its time.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import plotly.graph_objects as go

from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import KIND_WORDS
from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.palette import colours, ink, kinds, odd_colours, odd_kinds
from graphpipe.report.figures.timeline_rows import Columns, DrawnStep, Row, compared_rows, timeline_rows

TASK_HEIGHT, TRANSFER_HEIGHT, GAP = 1.0, 0.4, 0.3
MARGIN_PIXELS = 70


def timeline_figure(subject: Subject) -> Figure:
    """Return the figure of one plan's steps, a row per device."""
    rows, columns = timeline_rows(subject)
    stages = [subject.stage_name(stage) for stage in range(1 + max(columns.stage, default=0))]
    labelled = len(subject.traces) > 1
    devices = subject.traces[0].device_names
    return _figure(rows, columns, subject.step_seconds, stages, devices, labelled=labelled)


def compared_timeline_figure(steps: Sequence[DrawnStep]) -> Figure:
    """Return the figure of the steps of several plans on one time axis, a row per stage.

    Args:
        steps: each with a plan, and with the numbers of its first stage and device in the picture.
    """
    rows, columns = compared_rows(steps)
    stages, devices = dict[int, str](), dict[int, str]()
    for step in steps:
        assert step.plan is not None
        stages |= {step.first_stage + number: stage.name for number, stage in enumerate(step.plan.stages)}
        devices |= {step.first_device + number: name for number, name in enumerate(step.trace.device_names)}
    seconds = max(step.trace.step_seconds for step in steps)
    names = [stages[number] for number in sorted(stages)]
    return _figure(rows, columns, seconds, names, [devices[number] for number in sorted(devices)], labelled=True)


def _figure(
    rows: list[Row],
    columns: Columns,
    seconds: float,
    stages: Sequence[str],
    devices: Sequence[str],
    *,
    labelled: bool,
) -> Figure:
    # `page/assets/timeline.js` reads `extra`.
    bounds = _bounds(rows)
    hues = 1 + max(columns.hue, default=0)
    shades, words = colours(hues), kinds(hues)
    if any(columns.odd):
        apart = len(odd_colours(hues))
        shades, words = shades + odd_colours(hues), words + odd_kinds(hues)
        columns.code = [it + apart * odd for it, odd in zip(columns.code, columns.odd, strict=True)]
    codes = len(shades)
    scale = [pair for number, colour in enumerate(shades) for pair in _step(number, codes, colour)]
    heatmap = go.Heatmap(colorscale=scale, zmin=-0.5, zmax=codes - 0.5, showscale=False, hovertemplate="%{text}")
    marks = go.Scatter(mode="text", hoverinfo="skip", showlegend=False)
    figure = go.Figure([heatmap, marks])
    tasks = [(number, row) for number, row in enumerate(rows) if not row.transfers]
    figure.update_yaxes(
        range=[bounds[-1][1], 0],
        fixedrange=True,
        tickvals=[sum(bounds[number]) / 2 for number, _ in tasks],
        ticktext=[f"{row.device} {row.source}" if labelled else row.device for _, row in tasks],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(range=[0, seconds], minallowed=0, maxallowed=seconds, ticksuffix="s", tickformat=".3~s")
    figure.update_layout(dragmode="zoom")
    height = round(bounds[-1][1] * _pixels(len(tasks))) + MARGIN_PIXELS
    extra: dict[str, Any] = {
        "rows": [asdict(row) | {"from": top, "to": bottom} for row, (top, bottom) in zip(rows, bounds, strict=True)],
        "columns": asdict(columns),
        "stages": list(stages),
        "devices": list(devices),
        "words": [KIND_WORDS[kind] for kind in words],
        "ink": [ink(colour) if colour.startswith("#") else "" for colour in shades],
        "seconds": seconds,
    }
    return Figure(figure=figure, height=height, kind="timeline", extra=extra)


def _bounds(rows: list[Row]) -> list[tuple[float, float]]:
    """Return top and bottom of every row, with a gap above each device."""
    bounds: list[tuple[float, float]] = []
    at, before = 0.0, ""
    for row in rows:
        at += GAP if row.device != before else 0.0
        bounds.append((at, at + (TRANSFER_HEIGHT if row.transfers else TASK_HEIGHT)))
        at, before = bounds[-1][1], row.device
    return bounds


def _step(number: int, count: int, colour: str) -> list[tuple[float, str]]:
    return [(number / count, colour), ((number + 1) / count, colour)]


def _pixels(rows: int) -> float:
    """Return the height of a row of tasks in pixels. Many rows are lower."""
    return min(34.0, max(13.0, 640.0 / rows))
