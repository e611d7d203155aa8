"""The figure of the model's operators: a dot per operator, a coloured box per stage, data flows down."""

import plotly.graph_objects as go

from graphpipe.plans import Plan
from graphpipe.report.figures.figure import Figure
from graphpipe.report.figures.layered import layered
from graphpipe.report.figures.palette import stage_colour
from graphpipe.units import format_bytes

Place = tuple[float, float]
ROW_PIXELS, LEAST_COLUMN_PIXELS, MOST_COLUMN_PIXELS = 24, 34, 80
MOST_ROWS = 60
"""The most rows that get `ROW_PIXELS` each. The figure of a deeper model keeps its height."""


def operator_figure(plan: Plan) -> Figure:
    """Return the figure."""
    groups, places = operator_places(plan)
    figure = go.Figure()
    for number, (left, top, right, bottom) in enumerate(groups):
        fill = stage_colour(number)
        figure.add_shape(type="rect", x0=left, x1=right, y0=top, y1=bottom, layer="below")
        figure.update_shapes({"fillcolor": fill, "opacity": 0.28, "line": {"color": fill, "width": 1}}, selector=-1)
        name = plan.stages[number].name
        figure.add_annotation(x=left, y=top, text=f"<b>{name}</b>", showarrow=False, xanchor="left", yanchor="top")
    _add_edges(figure, plan, places)
    for number, stage in enumerate(plan.stages):
        figure.add_scatter(
            x=[places[name][0] for name in stage.ops],
            y=[places[name][1] for name in stage.ops],
            mode="markers",
            marker={"size": 10, "color": stage_colour(number), "line": {"width": 1}},
            name=stage.name,
            hovertext=[_hover(plan, stage.name, name) for name in stage.ops],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    right, bottom = max(group[2] for group in groups), max(group[3] for group in groups)
    figure.update_xaxes(visible=False, range=[-0.2, right + 0.2])
    figure.update_yaxes(visible=False, range=[bottom + 0.3, -0.3])
    figure.update_layout(showlegend=False, dragmode="pan", margin={"l": 4, "r": 4, "t": 4, "b": 4})
    height = round(min(bottom, MOST_ROWS) * ROW_PIXELS) + 40
    least, most = (round((right + 0.4) * pixels) for pixels in (LEAST_COLUMN_PIXELS, MOST_COLUMN_PIXELS))
    return Figure(figure=figure, height=height, least_width=min(1200, least), most_width=most)


def operator_places(plan: Plan) -> tuple[list[tuple[float, float, float, float]], dict[str, Place]]:
    """Return (left, top, right, bottom) of each stage's group, and (x, y) of each operator; groups do not overlap."""
    inside = [_inside(plan, number) for number in range(len(plan.stages))]
    sizes = [(_extent([x for x, _ in places.values()]), _extent([y for _, y in places.values()])) for places in inside]
    layers = layered(len(plan.stages), [(edge.source, edge.target) for edge in plan.edges])
    rows = [[number for number, (at, _) in enumerate(layers) if at == layer] for layer in range(layers[-1][0] + 1)]
    width = max(sum(sizes[number][0] + 1.6 for number in row) for row in rows)
    groups: dict[int, tuple[float, float, float, float]] = {}
    top = 0.0
    for row in rows:
        left = (width - sum(sizes[number][0] + 1.6 for number in row)) / 2 + 0.1
        tallest = max(sizes[number][1] for number in row)
        for number in sorted(row, key=lambda number: layers[number][1]):
            groups[number] = (left, top, left + sizes[number][0] + 1.4, top + tallest + 2.0)
            left += sizes[number][0] + 1.6
        top += tallest + 2.7
    places: dict[str, Place] = {}
    for number, inner in enumerate(inside):
        group = groups[number]
        middle = (group[0] + group[2]) / 2
        places |= {name: (middle + x, group[1] + 1.3 + y) for name, (x, y) in inner.items()}
    return [groups[number] for number in range(len(plan.stages))], places


def _inside(plan: Plan, number: int) -> dict[str, Place]:
    """Return the places of a stage's operators, with x around 0 and y from 0."""
    order = {name: at for at, name in enumerate(plan.graph.order)}
    ops = sorted(plan.stages[number].ops, key=order.__getitem__)
    index = {name: at for at, name in enumerate(ops)}
    edges = [
        (index[edge.source], index[edge.target])
        for edge in plan.graph.edges
        if edge.source in index and edge.target in index
    ]
    return {name: (place, float(layer)) for name, (layer, place) in zip(ops, layered(len(ops), edges), strict=True)}


def _extent(numbers: list[float]) -> float:
    return max(numbers) - min(numbers)


def _add_edges(figure: go.Figure, plan: Plan, places: dict[str, Place]) -> None:
    x: list[float | None] = []
    y: list[float | None] = []
    for edge in plan.graph.edges:
        source, target = places[edge.source], places[edge.target]
        x += [source[0], target[0], None]
        y += [source[1], target[1], None]
    figure.add_scatter(x=x, y=y, mode="lines", line={"width": 1.4, "color": "rgba(128,128,128,0.9)"}, hoverinfo="skip")


def _hover(plan: Plan, stage: str, name: str) -> str:
    op = plan.graph[name]
    amounts = f"{format_bytes(op.parameter_bytes)} of parameters"
    out = f"{format_bytes(op.output_bytes_per_sample)} out per sample"
    return f"<b>{name}</b><br>{op.kind}, in {stage}<br>{amounts}<br>{out}"
