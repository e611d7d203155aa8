"""The report as one HTML file: a verdict with its figures, other figures in cards, then the panels."""

import html
from collections.abc import Sequence
from pathlib import Path

from graphpipe.files.text_file import write_text
from graphpipe.report.content.subject import Subject
from graphpipe.report.content.verdict import verdict
from graphpipe.report.content.wording import source_word
from graphpipe.report.page.html_page import PageSection, html_page
from graphpipe.report.page.registry import all_panels
from graphpipe.units import format_bytes


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
    write_text(path, html_page(subject.title, _verdict(subject) + _cards(_facts(subject)), sections))
    return [section.title for section in sections]


def _verdict(subject: Subject) -> str:
    if (found := verdict(subject)) is None:
        return ""
    return f'<p class="verdict">{html.escape(found.sentence)}</p>{_cards(found.figures, "cards main")}'


def _facts(subject: Subject) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if plan := subject.plan:
        facts += [("planner", plan.planner), ("stages, depth", f"{len(plan.stages)}, {plan.depth}")]
        facts += [("devices", f"{len(plan.used_devices)} of {len(plan.cluster.devices)}")]
    facts += [("mini-batch", f"{subject.batch_size:,} samples")]
    for trace in subject.traces:
        word = source_word(trace.source)
        facts += [
            (f"throughput, {word}", f"{trace.samples_per_second:,.1f} samples/s"),
            (f"bubble, {word}", f"{trace.bubble_fraction:.1%}"),
        ]
    if subject.predicted and any(subject.predicted.peak_bytes):
        facts += [("peak memory, predicted", format_bytes(max(subject.predicted.peak_bytes)))]
    if subject.steps:
        facts += [("loss", f"{subject.steps[0].loss:.4g} → {subject.steps[-1].loss:.4g}")]
    return facts


def _cards(facts: Sequence[tuple[str, str]], kind: str = "cards") -> str:
    cards = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="{kind}">{"".join(cards)}</dl>'
