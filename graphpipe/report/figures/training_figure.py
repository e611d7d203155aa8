"""The figures of a run: loss and throughput of every step."""

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.palette import HUES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpipe.training.run_folder.evaluations_log import EvaluationMetrics
    from graphpipe.training.run_folder.metrics_log import StepMetrics

MOST_POINTS = 4_000


def loss_figure(steps: "Sequence[StepMetrics]", evaluations: "Sequence[EvaluationMetrics]" = ()) -> Figure:
    """Return the loss of every step, and that of every evaluation. A long run shows some 4,000 evenly spaced steps."""
    some = _some(steps)
    figure = _curve([step.step for step in some], [step.loss for step in some], "loss", HUES[0])
    held_out = [(each.step, each.loss) for each in evaluations if each.loss is not None]
    if held_out:
        figure.figure.add_scatter(
            x=[step for step, _ in held_out],
            y=[loss for _, loss in held_out],
            mode="lines+markers",
            line={"color": f"#{HUES[1]}"},
            name="held-out loss",
            hovertemplate="step %{x}: %{y:.5~g} held-out loss<extra></extra>",
        )
        figure.figure.update_layout(showlegend=True)
    return figure


def throughput_figure(steps: "Sequence[StepMetrics]", batch_size: int) -> Figure:
    """Return the samples per second of every step."""
    some = [step for step in _some(steps) if step.seconds > 0]
    rates = [batch_size / step.seconds for step in some]
    figure = _curve([step.step for step in some], rates, "samples/s", HUES[2])
    figure.figure.update_yaxes(rangemode="tozero")
    return figure


def _some(steps: "Sequence[StepMetrics]") -> "Sequence[StepMetrics]":
    return steps[:: -(-len(steps) // MOST_POINTS)]


def _curve(x: list[int], y: list[float], name: str, colour: str) -> Figure:
    figure = go.Figure()
    template = f"step %{{x}}: %{{y:.5~g}} {name}<extra></extra>"
    figure.add_scatter(x=x, y=y, mode="lines", line={"color": f"#{colour}"}, name=name, hovertemplate=template)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=name)
    figure.update_layout(showlegend=False, dragmode="zoom")
    return Figure(figure=figure, height=280)
