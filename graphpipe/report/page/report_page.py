"""The report as one HTML file: which panels there are, and what each says."""

import html
from pathlib import Path

from graphpipe.files.json_document import write_text
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.words import source_word
from graphpipe.report.page.html_page import Panel, page
from graphpipe.report.page.plan_panels import operators_panel, origin_panel, stages_panel
from graphpipe.report.page.run_panels import planners_panel, training_panel
from graphpipe.report.page.step_panels import differences_panel, memory_panel, timeline_panel
from graphpipe.units import format_bytes, format_seconds

PANELS = (
    ("stages", "Stages", stages_panel),
    ("timeline", "Timeline", timeline_panel),
    ("differences", "Predicted against measured", differences_panel),
    ("memory", "Memory", memory_panel),
    ("training", "Training", training_panel),
    ("planners", "Planners", planners_panel),
    ("model", "Model", operators_panel),
    ("origin", "Where this comes from", origin_panel),
)
"""Name, title, and what builds it, or returns None where there is nothing to show."""


def write_html(subject: Subject, path: str | Path) -> list[str]:
    """Write the report, and return the titles of its panels.

    Raises:
        InvalidInput: the file cannot be written.
    """
    panels = [
        Panel(name=name, title=title, body=body)
        for name, title, build in PANELS
        if (body := build(subject)) is not None
    ]
    write_text(path, page(subject.title, _cards(subject), panels))
    return [panel.title for panel in panels]


def _cards(subject: Subject) -> str:
    """Return the figures at the top."""
    facts: list[tuple[str, str]] = []
    if plan := subject.plan:
        facts += [("planner", plan.planner), ("stages, depth", f"{len(plan.stages)}, {plan.depth}")]
        facts += [("devices", f"{len(plan.used_devices)} of {len(plan.cluster.devices)}")]
    facts += [("mini-batch", f"{subject.batch_size:,} samples")]
    for trace in subject.traces:
        word = source_word(trace.source)
        facts += [
            (f"step, {word}", format_seconds(trace.step_seconds)),
            (f"throughput, {word}", f"{trace.samples_per_second:,.1f} samples/s"),
            (f"bubble, {word}", f"{trace.bubble_fraction:.1%}"),
        ]
    if subject.predicted and any(subject.predicted.peak_bytes):
        facts += [("peak memory, predicted", format_bytes(max(subject.predicted.peak_bytes)))]
    if subject.steps:
        facts += [("loss", f"{subject.steps[0].loss:.4g} → {subject.steps[-1].loss:.4g}")]
    cards = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="cards">{"".join(cards)}</dl>'
