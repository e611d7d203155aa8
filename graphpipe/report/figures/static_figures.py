"""Stage graphs and timelines as a static picture, for papers: of one plan, or of several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path as FilePath
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import offset_copy

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.report.content.compared_plan import ComparedPlan
from graphpipe.report.content.matched_hues import matched_hues
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import KIND_WORDS, source_word
from graphpipe.report.figures.palette import code, colour, colours, ink, kinds, stage_colour, task_colour
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
from graphpipe.report.figures.timeline_rows import Columns, Row, compared_rows, drawn_steps, timeline_rows
from graphpipe.trace import Trace
from graphpipe.units import format_seconds

MOST_LABELLED = 10_000
WIDTH_INCHES = 7.2
_LEAST_COLUMNS = 4.6
"""Boxes that a picture has room for beside each other, at least."""
_BUBBLE = "#f7d4d4"
_LEGEND_COLUMNS = 5
"""More would be wider than the picture."""
_LEGEND_POINTS = -26
"""Distance from the axis to the legend, below the label of the axis."""


def write_still(subject: Subject, path: str | FilePath) -> list[str]:
    """Write the stage graph, and below it the timeline, into one file. The suffix of its name gives the format.

    Returns:
        The names of the parts that the picture shows.

    Raises:
        InvalidInput: the file cannot be written, or there is nothing to draw.
    """
    parts = [_stage_part("stage graph", subject.plan, ())] if subject.plan else []
    if subject.step_seconds:
        rows, columns = timeline_rows(subject)
        several = len(subject.traces) > 1
        names = [f"{row.device} {row.source}" if several else row.device for row in rows]
        title = _step_title(subject.traces[0], subject.batch_size)
        parts.append(_timeline_part(rows, columns, names, subject.step_seconds, title))
    if not parts:
        raise InvalidInput("there is no plan, and nothing in the step takes time: nothing to draw")
    return _write(parts, path)


def write_compared_still(compared: Sequence[ComparedPlan], path: str | FilePath) -> list[str]:
    """Write the stage graphs of several plans, and below them their timelines on one axis, into one file.

    Returns, Raises: as `write_still`.
    """
    hues = matched_hues([plan.plan for plan in compared])
    parts = [_stage_part(f"stages of {each.name}", each.plan, own) for each, own in zip(compared, hues, strict=True)]
    steps = drawn_steps(compared)
    rows, columns = compared_rows(steps)
    several = len({row.source for row in rows}) > 1
    names = [f"{row.device} {row.source}" if several else row.device for row in rows]
    seconds = max(step.trace.step_seconds for step in steps)
    title = "; ".join(
        f"{each.name} {format_seconds(each.predicted.step_seconds)}, bubble {each.predicted.bubble_fraction:.1%}"
        for each in compared
    )
    parts.append(_timeline_part(rows, columns, names, seconds, f"predicted step: {title}"))
    return _write(parts, path)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a picture."""

    name: str
    height: float
    """In inches."""
    draw: Callable[[Axes], None]


def _stage_part(name: str, plan: Plan, hues: Sequence[int]) -> _Part:
    depth = 1 + max(y for _, y in stage_places(plan))
    return _Part(name, 1.2 * depth, lambda axes: _draw_stages(axes, plan, hues))


def _timeline_part(rows: list[Row], columns: Columns, names: list[str], seconds: float, title: str) -> _Part:
    tasks = sum(not row.transfers for row in rows)
    draw = partial(_draw_timeline, rows=rows, columns=columns, names=names, seconds=seconds, title=title)
    return _Part("timeline", 0.9 + min(8.0, 0.28 * tasks), draw)


def _write(parts: Sequence[_Part], path: str | FilePath) -> list[str]:
    with rc_context({"font.size": 8, "svg.hashsalt": "graphpipe", "pdf.fonttype": 42}):
        heights = [part.height for part in parts]
        figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained", dpi=200)
        axes = figure.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
        for part, where in zip(parts, axes, strict=True):
            part.draw(where)
        _save(figure, FilePath(path))
    return [part.name for part in parts]


def _save(figure: Figure, path: FilePath) -> None:
    # Without a date, the same plan gives the same file.
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise InvalidInput(f"cannot write: {error.strerror}", where=str(path)) from None


def _draw_stages(axes: Axes, plan: Plan, hues: Sequence[int]) -> None:
    places = stage_places(plan)
    for edge in plan.edges:
        at = _draw_arrow(axes, places[edge.source], places[edge.target], passes_boxes(places, edge.source, edge.target))
        background = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(at[0], at[1], edge_label(edge), fontsize=6, ha="center", va="center", bbox=background)
    for number, (x, y) in enumerate(places):
        fill = stage_colour(hues[number] if hues else number)
        corner = (x - HALF_WIDTH, y - HALF_HEIGHT)
        axes.add_patch(Rectangle(corner, 2 * HALF_WIDTH, 2 * HALF_HEIGHT, color=fill, linewidth=0))
        text = "\n".join(stage_lines(plan, number))
        axes.text(x, y, text, fontsize=6.5, ha="center", va="center", color=ink(fill))
    across, down = [x for x, _ in places], [y for _, y in places]
    left, right = min(across) - 0.6, right_end(plan, places)
    spare = max(0.0, _LEAST_COLUMNS - (right - left)) / 2  # the boxes of a chain would be as wide as the picture
    axes.set(xlim=(left - spare, right + spare), ylim=(max(down) + 0.4, -0.4))
    axes.set_title(f"{plan.graph.name} on {plan.cluster.name}: stages of {plan.planner}", fontsize=8, loc="left")
    axes.set_axis_off()


def _draw_arrow(
    axes: Axes, source: tuple[float, float], target: tuple[float, float], aside: bool
) -> tuple[float, float]:
    """Draw an arrow, beside the boxes or straight, and return the place of its label."""
    (x0, y0), (x1, y1) = source, target
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": "0.4", "shrinkA": 0, "shrinkB": 0}
    if not aside:
        ends = (x0, y0 + HALF_HEIGHT), (x1, y1 - HALF_HEIGHT)
        axes.add_patch(FancyArrowPatch(*ends, **style))
        return x0 + 0.38 * (x1 - x0), ends[0][1] + 0.38 * (ends[1][1] - ends[0][1])
    out = bow(source, target)
    points = [(x0 + HALF_WIDTH, y0), (out, y0), (out, y1), (x1 + HALF_WIDTH, y1)]
    axes.add_patch(FancyArrowPatch(path=Path(points, [Path.MOVETO, *[Path.CURVE4] * 3]), **style))
    return 0.25 * (x0 + HALF_WIDTH) + 0.75 * out, 0.84 * y0 + 0.16 * y1


def _draw_timeline(
    axes: Axes, *, rows: list[Row], columns: Columns, names: list[str], seconds: float, title: str
) -> None:
    level, at = 0.0, list[float]()
    for row in rows:
        at.append(level)
        level += _height(row)
    _draw_spans(axes, columns, at, [_height(row) for row in rows])
    if len(columns.row) <= MOST_LABELLED:
        _label_tasks(axes, columns, at, rows, seconds)
    tasks = [(place, name) for place, name, row in zip(at, names, rows, strict=True) if not row.transfers]
    labels = [name for _, name in tasks]
    axes.set_yticks([place + 0.45 for place, _ in tasks], labels, fontsize=6 if len(tasks) < 24 else 4)
    axes.set(xlim=(0, seconds), ylim=(level, -0.1))
    axes.set_xlabel("seconds", loc="right")
    axes.set_title(title, fontsize=8, loc="left", wrap=True)
    _draw_legend(axes, columns)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _step_title(trace: Trace, batch_size: int) -> str:
    shown = trace.batch_size // batch_size
    what = "one step" if shown == 1 else f"{shown} mini-batches"
    return (
        f"{what} of {batch_size} samples: {format_seconds(trace.step_seconds)}, "
        f"bubble {trace.bubble_fraction:.1%} ({source_word(trace.source)})"
    )


def _draw_legend(axes: Axes, columns: Columns) -> None:
    # Forward and backward are shades of the stage's colour, here of the first stage's.
    used = set(columns.code)
    tasks = [(kind, task_colour(kind, 0)) for kind in ("F", "B", "I", "W") if used & _codes(kind, columns)]
    others = [(kind, colour(kind, 0)) for kind in ("send", "receive", "reduce", "optimizer") if code(kind, 0) in used]
    bubble = [("bubble", _BUBBLE)] if code("bubble", 0) in used else []
    handles = [Patch(color=shade, label=KIND_WORDS[kind]) for kind, shade in (*tasks, *others, *bubble)]
    assert isinstance(axes.figure, Figure)
    below = offset_copy(axes.transAxes, axes.figure, y=_LEGEND_POINTS, units="points")
    axes.legend(
        handles=handles,
        fontsize=6,
        ncols=_LEGEND_COLUMNS,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        bbox_transform=below,
    )


def _codes(kind: str, columns: Columns) -> set[int]:
    return {code(kind, hue) for hue in range(1 + max(columns.hue, default=0))}


def _draw_spans(axes: Axes, columns: Columns, at: list[float], heights: list[float]) -> None:
    # One artist per row and colour. Bubbles are pale red, warm-up and drain stay white.
    shades, white = colours(1 + max(columns.hue, default=0)), {code(kind, 0) for kind in ("warm-up", "drain")}
    shades[code("bubble", 0)] = _BUBBLE
    spans_by_kind: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for number, place in enumerate(columns.row):
        if columns.code[number] not in white:
            start, end = columns.start[number], columns.end[number]
            spans_by_kind.setdefault((place, _shade(columns, number, shades)), []).append((start, end - start))
    for (place, shade), bars in spans_by_kind.items():
        axes.broken_barh(bars, (at[place], 0.9 * heights[place]), facecolor=shade, edgecolor="white", lw=0.2)


def _shade(columns: Columns, number: int, shades: list[str]) -> str:
    at = columns.code[number]
    if not columns.odd[number]:
        return shades[at]
    return task_colour(kinds(1 + columns.hue[number])[at], columns.hue[number], odd=True)


def _label_tasks(axes: Axes, columns: Columns, at: list[float], rows: list[Row], seconds: float) -> None:
    digits = len(str(max(columns.micro_batch, default=0)))
    shades = colours(1 + max(columns.hue, default=0))
    for number, place in enumerate(columns.row):
        length, micro_batch = columns.end[number] - columns.start[number], columns.micro_batch[number]
        if micro_batch < 0 or rows[place].transfers or length < 0.009 * digits * seconds:
            continue
        middle, shade = columns.start[number] + length / 2, ink(_shade(columns, number, shades))
        version = columns.version[number] + columns.ahead[number]
        text = f"{micro_batch}\nv{version}" if columns.version[number] >= 0 else str(micro_batch)
        axes.text(middle, at[place] + 0.45, text, fontsize=5, ha="center", va="center", color=shade, linespacing=0.9)


def _height(row: Row) -> float:
    return 0.35 if row.transfers else 1.0
