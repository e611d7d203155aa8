"""The panels about one step: its timeline, what was predicted wrongly, and its memory."""

from graphpipe.report.content.subject import Subject
from graphpipe.report.content.words import KIND_WORDS, signed_seconds
from graphpipe.report.figures.memory_figure import PARTS, memory_figure, stage_bytes, stage_bytes_figure
from graphpipe.report.figures.palette import HUES, IDLE, colour, stage_colour
from graphpipe.report.figures.timeline_figure import timeline_figure
from graphpipe.report.page.html_page import figure, legend, note, table
from graphpipe.trace import compare
from graphpipe.units import format_bytes, format_seconds

MOST_DIFFERENCES = 12


def timeline_panel(subject: Subject) -> str | None:
    """Return what every device did when."""
    if not subject.step_seconds:
        return None
    stages = 1 + max((span.stage for trace in subject.traces for span in trace.spans), default=0)
    hues = [(stage_colour(stage), subject.stage_name(stage)) for stage in range(min(stages, len(HUES)))]
    used = {span.kind for trace in subject.traces for span in trace.spans}
    shades = {"F": ", light", "B": ", dark", "W": ", darkest"}
    kinds = [(colour(kind, 0), KIND_WORDS[kind] + shades.get(kind, "")) for kind in KIND_WORDS if kind in used]
    waits = [(shade, KIND_WORDS[kind]) for kind, shade in IDLE.items()]
    several = " Predicted stands above measured." if len(subject.traces) > 1 else ""
    return (
        note(
            f"A row per device, its transfers in the thin row under it; numbers are micro-batches.{several} Drag over "
            "a part to zoom in, double-click to see the whole step; or use the buttons, or the keys + - ← → and 0."
        )
        + legend(hues)
        + legend([*kinds, *waits])
        + figure("timeline-figure", "Timeline of one training step, a row per device", timeline_figure(subject))
    )


def differences_panel(subject: Subject) -> str | None:
    """Return where prediction and run differ most."""
    if subject.predicted is None or subject.measured is None:
        return None
    found = compare(subject.predicted, subject.measured)
    rows = [
        [
            f"{KIND_WORDS[one.kind]}, {subject.stage_name(one.stage)}",
            format_seconds(one.predicted_seconds),
            format_seconds(one.measured_seconds),
            str(one.count),
            signed_seconds(one.total_seconds),
        ]
        for one in found.differences[:MOST_DIFFERENCES]
    ]
    predicted, measured = map(format_seconds, (found.predicted_step_seconds, found.measured_step_seconds))
    error = f"{abs(found.step_error):.1%} too {'long' if found.step_error > 0 else 'short'}"
    headings = ("what", "predicted", "measured", "times", "difference in all")
    return note(f"The step was predicted to take {predicted} and took {measured}: the prediction is {error}.") + table(
        "Largest differences", headings, rows
    )


def memory_panel(subject: Subject) -> str | None:
    """Return what every device holds, and what it is."""
    body = ""
    if subject.step_seconds and any(trace.memory for trace in subject.traces):
        text = "What each device holds during the step. A limit far above all curves is out of sight: double-click."
        if subject.measured and subject.measured.memory:
            text += " A measured peak is a GPU's own, but on a CPU that of the whole process, with PyTorch in it."
        body += note(text) + figure("memory-figure", "Memory of each device over time", memory_figure(subject))
    if plan := subject.plan:
        shares = [stage_bytes(plan, number) for number in range(len(plan.stages))]
        rows = [
            [stage.name, *(format_bytes(getattr(share, part)) for part in PARTS)]
            for stage, share in zip(plan.stages, shares, strict=True)
        ]
        body += figure("stage-bytes", "Where the bytes of each stage are; the table says it", stage_bytes_figure(plan))
        body += table("Where the bytes are: one device of each stage", ("stage", *PARTS), rows)
        body += note("With all its samples in flight. Buffers are tensors received from other stages.")
    return body or None
