"""The panels about one training step: its timeline, its prediction errors, and its memory."""

from graphpipe.plans import Plan
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.weight_reads import version_rows
from graphpipe.report.content.wording import KIND_WORDS, SHADES, signed_seconds, slowdown_sentences
from graphpipe.report.figures.memory_figure import (
    PARTS,
    memory_figure,
    most_samples,
    stage_bytes,
    stage_bytes_figure,
)
from graphpipe.report.figures.palette import IDLE, colour, stage_colour, task_colour
from graphpipe.report.figures.timeline_figure import timeline_figure
from graphpipe.report.page.html_page import figure, legend, note, table
from graphpipe.report.page.panel import Panel
from graphpipe.trace import Trace
from graphpipe.trace.compare import compare
from graphpipe.units import byte_unit, format_seconds, in_unit

MOST_DIFFERENCES = 12


def _timeline(subject: Subject) -> str | None:
    """Return the timeline of every device."""
    if not subject.step_seconds:
        return None
    stages = 1 + max((span.stage for trace in subject.traces for span in trace.spans), default=0)
    hues = [(stage_colour(stage), subject.stage_name(stage)) for stage in range(stages)]
    used = {span.kind for trace in subject.traces for span in trace.spans}
    kinds = [(colour(kind, 0), KIND_WORDS[kind] + SHADES.get(kind, "")) for kind in KIND_WORDS if kind in used]
    waits = [(shade, KIND_WORDS[kind]) for kind, shade in IDLE.items()]
    shown = max((trace.batch_size // subject.batch_size for trace in subject.traces), default=1)
    if subject.plan is not None and shown > 1:
        kinds.append((task_colour("F", 0, odd=True), "forward of every second mini-batch, lighter"))
    several = " The predicted row is above the measured row." if len(subject.traces) > 1 else ""
    return (
        note(
            "Each device has a row for its tasks and a thin row below it for its transfers. Numbers are micro-batches."
            f"{several}{_versions_note(subject, shown)} Drag over a part to zoom in, and double-click to see the whole "
            "step. You can also use the buttons, or the keys + - ← → and 0."
        )
        + legend(hues)
        + legend([*kinds, *waits])
        + figure("timeline-figure", "Timeline of one training step, a row per device", timeline_figure(subject))
        + _versions_table(subject)
    )


def _versions_note(subject: Subject, mini_batches: int) -> str:
    if mini_batches < 2 or subject.plan is None:
        return ""
    note = f" {mini_batches} mini-batches follow each other, in two shades in turn."
    if subject.plan.weights == "flush":
        return note
    return f"{note} v2 is the version of the weights that a task reads: the one that the second update has made."


def _versions_table(subject: Subject) -> str:
    """Return which weights the tasks of a mini-batch read, stage by stage; nothing if the pipeline drains."""
    if subject.plan is None or subject.plan.weights == "flush" or not subject.traces:
        return ""
    rows = [[stage, *map(str, cells)] for stage, *cells in version_rows(subject.plan, subject.traces[0])]
    headings = ("stage", "mini-batch", "forwards read", "backwards read", "then made")
    return table(f"Versions of the weights, under {subject.plan.weights}", headings, rows, words=1)


def _differences(subject: Subject) -> str | None:
    """Return where prediction and run differ most."""
    if subject.predicted is None or subject.measured is None:
        return None
    comparison = compare(subject.predicted, subject.measured)
    rows = [
        [
            f"{KIND_WORDS[one.kind]}, {subject.stage_name(one.stage)}",
            format_seconds(one.predicted_seconds),
            format_seconds(one.measured_seconds),
            str(one.count),
            signed_seconds(one.total_seconds),
        ]
        for one in comparison.differences[:MOST_DIFFERENCES]
    ]
    predicted, measured = map(format_seconds, (comparison.predicted_step_seconds, comparison.measured_step_seconds))
    error = f"{abs(comparison.step_error):.1%} too {'long' if comparison.step_error > 0 else 'short'}"
    headings = ("what", "predicted", "measured", "times", "difference in all")
    slowed = slowdown_sentences([subject.measured])
    return (
        note(f"The step was predicted to take {predicted} and took {measured}: the prediction is {error}.")
        + (note(slowed) if slowed else "")
        + table("Largest differences", headings, rows)
    )


def _memory(subject: Subject) -> str | None:
    """Return the memory of every device over time, and of every stage by kind of tensor."""
    body = ""
    if subject.step_seconds and any(trace.memory for trace in subject.traces):
        text = (
            "Memory of each device during the step. What is far above all curves is not visible until you double-click."
        )
        if subject.measured and subject.measured.memory:
            text += (
                " Predicted bytes are those of tensors. On a GPU, a measured peak is that of its memory. On a CPU, it "
                "is that of the whole process, with Python and PyTorch, so it cannot be compared with the prediction."
            )
        body += note(text) + figure("memory-figure", "Memory of each device over time", memory_figure(subject))
    if plan := subject.plan:
        body += _stage_memory(plan, subject.predicted)
    return body or None


def _stage_memory(plan: Plan, predicted: Trace | None) -> str:
    shares = [stage_bytes(plan, number, predicted) for number in range(len(plan.stages))]
    unit, size = byte_unit(max(sum(getattr(share, part) for part in PARTS) for share in shares))
    rows: list[list[str]] = []
    for number, (stage, share) in enumerate(zip(plan.stages, shares, strict=True)):
        samples = stage.in_flight / stage.degree if predicted is None else most_samples(plan, number, predicted)
        capacity = plan.cluster.type_of(stage.devices[0]).memory_bytes
        parts = [getattr(share, part) for part in PARTS]
        rows.append([stage.name, f"{samples:g}", *(in_unit(each, size) for each in (*parts, sum(parts), capacity))])
    whose = "at the simulated peak" if predicted else "with as many samples in flight as the plan allows"
    return (
        figure(
            "stage-bytes",
            "Memory of each stage by kind. The table below has the same data.",
            stage_bytes_figure(plan, predicted),
        )
        + table(
            f"Memory by kind in {unit}, on one device of each stage, {whose}",
            ("stage", "samples held", *PARTS, "in all", "capacity"),
            rows,
        )
        + note(
            "Buffers are tensors received from other stages. A device with several stages adds up their bytes, though "
            "their peaks may be at different times."
        )
    )


TIMELINE = Panel(name="timeline", title="Timeline", build=_timeline)
DIFFERENCES = Panel(name="differences", title="Predicted against measured", build=_differences)
MEMORY = Panel(name="memory", title="Memory", build=_memory)
