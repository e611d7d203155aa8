"""The figure of the peak memory of several plans: a bar per group of devices, and a mark at its capacity."""

from collections.abc import Sequence

import plotly.graph_objects as go

from graphpipe.report.content.compared_plan import DevicePeak
from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.memory_figure import add_capacities, zoomed
from graphpipe.report.figures.palette import HUES
from graphpipe.units import byte_unit, format_bytes


def compared_memory_figure(peaks: Sequence[DevicePeak]) -> Figure:
    """Return the figure."""
    unit, size = byte_unit(max(peak.bytes for peak in peaks))
    rows = [f"{peak.plan} {peak.name}" for peak in peaks]
    plans = list(dict.fromkeys(peak.plan for peak in peaks))
    figure = go.Figure()
    figure.add_bar(
        y=rows,
        x=[peak.bytes / size for peak in peaks],
        orientation="h",
        marker={"color": [f"#{HUES[plans.index(peak.plan) % len(HUES)]}" for peak in peaks]},
        hovertext=[f"{format_bytes(peak.bytes)} of {format_bytes(peak.capacity)}" for peak in peaks],
        hovertemplate="%{y}: %{hovertext}<extra></extra>",
    )
    add_capacities(figure, rows, [peak.capacity / size for peak in peaks], unit)
    figure.update_layout(showlegend=False)
    figure.update_xaxes(title=f"{unit}, red: capacity", rangemode="tozero")
    ranges = zoomed(figure, max(peak.bytes for peak in peaks) / size, max(peak.capacity for peak in peaks) / size)
    figure.update_yaxes(autorange="reversed", type="category", fixedrange=True)
    return Figure(figure=figure, height=90 + 26 * len(rows), extra=ranges)
