"""The figure that compares planners: a bar of throughput for each."""

from collections.abc import Mapping

import plotly.graph_objects as go

from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.palette import HUES


def planners_figure(samples_per_second: Mapping[str, float]) -> Figure:
    """Return a bar per planner that found a plan, the fastest on top."""
    ranked = sorted(samples_per_second.items(), key=lambda pair: -pair[1])
    figure = go.Figure()
    figure.add_bar(
        y=[planner for planner, _ in ranked],
        x=[rate for _, rate in ranked],
        orientation="h",
        marker={"color": f"#{HUES[0]}"},
        texttemplate="%{x:,.4~s}",
        hovertemplate="%{y}: %{x:,.1f} samples/s<extra></extra>",
    )
    figure.update_xaxes(title="samples/s, predicted", rangemode="tozero", fixedrange=True)
    figure.update_yaxes(autorange="reversed", type="category", fixedrange=True)
    return Figure(figure=figure, height=90 + 30 * max(1, len(ranked)))
