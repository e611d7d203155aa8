"""The figure of the stage graph: a box per stage, an arrow per edge, data flows down."""

from collections.abc import Sequence

import plotly.graph_objects as go

from graphpipe.plans import Plan, Stage
from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.palette import ink, stage_colour
from graphpipe.report.figures.stage_boxes import (
    HALF_HEIGHT,
    HALF_WIDTH,
    bow,
    edge_label,
    passes_boxes,
    right_end,
    stage_lines,
    stage_places,
)

ROW_PIXELS, LEAST_COLUMN_PIXELS, MOST_COLUMN_PIXELS = 150, 150, 230


def stage_figure(plan: Plan, hues: Sequence[int] = ()) -> Figure:
    """Return the figure.

    Args:
        plan: whose stages are drawn.
        hues: the number of the hue of each stage; empty: its own number.
    """
    places = stage_places(plan)
    figure = go.Figure()
    for number, (x, y) in enumerate(places):
        fill = stage_colour(hues[number] if hues else number)
        figure.add_shape(type="rect", x0=x - HALF_WIDTH, x1=x + HALF_WIDTH, y0=y - HALF_HEIGHT, y1=y + HALF_HEIGHT)
        figure.update_shapes({"fillcolor": fill, "line": {"width": 0}}, selector=-1)
        name, *more = stage_lines(plan, number)
        text = "<br>".join([f"<b>{name}</b>", *more])
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"color": ink(fill), "size": 11})
    for edge in plan.edges:
        add = _add_side_arrow if passes_boxes(places, edge.source, edge.target) else _add_arrow
        add(figure, places[edge.source], places[edge.target], edge_label(edge))
    figure.add_scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        mode="markers",
        marker={"size": 46, "opacity": 0.0},
        hovertext=[_hover(plan, stage) for stage in plan.stages],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    across, down = [x for x, _ in places], [y for _, y in places]
    figure.update_xaxes(visible=False, range=[min(across) - 0.6, right_end(plan, places)], fixedrange=True)
    figure.update_yaxes(visible=False, range=[max(down) + 0.45, -0.45], fixedrange=True)
    figure.update_layout(showlegend=False, margin={"l": 4, "r": 4, "t": 4, "b": 4})
    columns = right_end(plan, places) - min(across) + 0.4
    return Figure(
        figure=figure,
        height=round((max(down) + 1) * ROW_PIXELS) + 8,
        least_width=round(columns * LEAST_COLUMN_PIXELS),
        most_width=round(columns * MOST_COLUMN_PIXELS),
    )


def _add_arrow(figure: go.Figure, source: tuple[float, float], target: tuple[float, float], label: str) -> None:
    ends = {"x": target[0], "y": target[1] - HALF_HEIGHT, "ax": source[0], "ay": source[1] + HALF_HEIGHT}
    frame = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    figure.add_annotation(ends | frame, text="", showarrow=True, arrowhead=2, arrowsize=1.1, arrowwidth=1.4)
    # Labels are near the source, because arrows that meet at their target would cover each other's labels.
    middle = {"x": ends["ax"] + 0.38 * (ends["x"] - ends["ax"]), "y": ends["ay"] + 0.38 * (ends["y"] - ends["ay"])}
    figure.add_annotation(middle, text=label, showarrow=False, font={"size": 10}, name="label")


def _add_side_arrow(figure: go.Figure, source: tuple[float, float], target: tuple[float, float], label: str) -> None:
    # It leaves and enters the boxes at their right sides.
    x0, x1 = source[0] + HALF_WIDTH, target[0] + HALF_WIDTH
    out = bow(source, target)
    path = f"M {x0},{source[1]} C {out},{source[1]} {out},{target[1]} {x1 + 0.04},{target[1]}"
    figure.add_shape(type="path", path=path, line={"color": "rgba(128,128,128,0.8)", "width": 1.4})
    ends = {"x": x1, "y": target[1], "ax": x1 + 0.05, "ay": target[1]}
    frame = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    figure.add_annotation(ends | frame, text="", showarrow=True, arrowhead=2, arrowsize=1.1, arrowwidth=1.4)
    # A quarter of the way along the bow, because the middles of several bows would meet.
    middle = {"x": 0.25 * x0 + 0.75 * out, "y": 0.84 * source[1] + 0.16 * target[1]}
    figure.add_annotation(middle, text=label, showarrow=False, font={"size": 10}, name="label")


def _hover(plan: Plan, stage: Stage) -> str:
    devices = [plan.cluster.devices[device].name for device in stage.devices]
    lines = [
        f"<b>{stage.name}</b>",
        f"{len(stage.ops)} operators: {_few(stage.ops)}",
        f"devices: {_few(devices)}",
        f"micro-batch: {stage.micro_batch} samples over {stage.degree} replicas",
        f"in flight: {stage.in_flight} samples",
    ]
    lines += [] if stage.tensor == 1 else [f"{stage.tensor} devices share each replica"]
    return "<br>".join(lines)


def _few(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:2])} .. {names[-1]}"
