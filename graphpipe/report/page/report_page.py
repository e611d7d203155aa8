"""The report as one HTML file: the main figures in cards, then the panels."""

import html
from pathlib import Path

from graphpipe.files.text_file import write_text
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.wording import source_word
from graphpipe.report.page.html_page import PageSection, html_page
from graphpipe.report.page.registry import all_panels
from graphpipe.units import format_bytes, format_seconds


def write_html(subject: Subject, path: str | Path) -> list[str]:
    """Write the report. Return the titles of the panels that have something to show.

    Raises:
        InvalidInput: the file cannot be written, or an installed package's panel cannot be imported.
    """
    sections = [
        PageSection(name=panel.name, title=panel.title, body=body)
        for panel in all_panels().values()
        if (body := panel.build(subject)) is not None
    ]
    write_text(path, html_page(subject.title, _cards(subject), sections))
    return [section.title for section in sections]


def _cards(subject: Subject) -> str:
    """Return the main figures, which stand at the top."""
    facts: list[tuple[str, str]] = []
    if plan := subject.plan:
        facts += [("planner", plan.planner), ("stages, depth", f"{len(plan.stages)}, {plan.depth}")]
        facts += [("devices", f"{len(plan.used_devices)} of {len(plan.cluster.devices)}")]
    facts += [("mini-batch", f"{subject.batch_size:,} samples")]
    for trace in subject.traces:
        word, shown = source_word(trace.source), trace.batch_size // subject.batch_size
        facts += [
            (f"{'step' if shown < 2 else f'{shown} mini-batches'}, {word}", format_seconds(trace.step_seconds)),
            (f"throughput, {word}", f"{trace.samples_per_second:,.1f} samples/s"),
            (f"bubble, {word}", f"{trace.bubble_fraction:.1%}"),
        ]
    if subject.predicted and any(subject.predicted.peak_bytes):
        facts += [("peak memory, predicted", format_bytes(max(subject.predicted.peak_bytes)))]
    if subject.steps:
        facts += [("loss", f"{subject.steps[0].loss:.4g} → {subject.steps[-1].loss:.4g}")]
    cards = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="cards">{"".join(cards)}</dl>'
