"""Several plans side by side, as one HTML file: what differs, stage graphs, timelines on one time axis, memory."""

import html
from collections.abc import Sequence
from pathlib import Path

from graphpipe.files.text_file import write_text
from graphpipe.report.content.compared_plan import (
    ComparedPlan,
    device_peaks,
    larger_bubble,
    properties,
    throughputs,
)
from graphpipe.report.content.matched_hues import matched_hues
from graphpipe.report.content.wording import KIND_WORDS, SHADES, slowdown_sentences, source_word
from graphpipe.report.figures.compared_memory_figure import compared_memory_figure
from graphpipe.report.figures.palette import IDLE, colour
from graphpipe.report.figures.stage_figure import stage_figure
from graphpipe.report.figures.timeline_figure import compared_timeline_figure
from graphpipe.report.figures.timeline_rows import drawn_steps
from graphpipe.report.page.html_page import PageSection, figure, html_page, legend, note, table
from graphpipe.units import byte_unit, format_seconds, in_unit


def write_comparison(title: str, compared: Sequence[ComparedPlan], path: str | Path) -> list[str]:
    """Write the page. Return the titles of its sections.

    Args:
        title: of the page.
        compared: two plans or more. The first is compared with each of the others.
        path: of the HTML file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    sections = [
        PageSection(name="what-differs", title="What differs", body=_differences(compared)),
        PageSection(name="stages", title="Stages", body=_stages(compared)),
        PageSection(name="timelines", title="Timelines", body=_timelines(compared)),
        PageSection(name="memory", title="Memory", body=_memory(compared)),
    ]
    write_text(path, html_page(title, _cards(compared), sections))
    return [section.title for section in sections]


def _cards(compared: Sequence[ComparedPlan]) -> str:
    first, *others = compared
    facts: list[tuple[str, str]] = []
    for plan in compared:
        facts += [(f"{plan.name}: step, predicted", format_seconds(plan.predicted.step_seconds))]
        if run := plan.subject.measured:
            facts += [(f"{plan.name}: step, {source_word(run.source)}", format_seconds(run.step_seconds))]
    for word, rates in throughputs(compared):
        for other, rate in zip(others, rates[1:], strict=True):
            facts += [(f"{first.name} against {other.name}, {word}", f"{rates[0] / rate:.2f}x" if rate else "-")]
    cards = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _differences(compared: Sequence[ComparedPlan]) -> str:
    words = [properties(plan) for plan in compared]
    names = list(dict.fromkeys(name for by_name in words for name in by_name))
    rows = [[name, *(by_name.get(name, "-") for by_name in words)] for name in names]
    different = [row for row in rows if len(set(row[1:])) > 1]
    same = ", ".join(f"{name} {values[0]}" for name, *values in rows if len(set(values)) == 1)
    body = table("Differences", ("what", *(plan.name for plan in compared)), different) if different else ""
    bubble = larger_bubble(compared)
    return (
        body
        + (note(bubble) if bubble else "")
        + (note(f"The same in all plans: {same}.") if same else "")
        + _rehearsals(compared)
    )


def _rehearsals(compared: Sequence[ComparedPlan]) -> str:
    slowed = slowdown_sentences(trace for plan in compared for trace in plan.subject.traces)
    return note(slowed) if slowed else ""


def _stages(compared: Sequence[ComparedPlan]) -> str:
    return (
        note(
            "Each box is a stage, and data flows down. Stages that no arrows join, directly or over others, run at the "
            "same time. A stage of a chain waits for the stage before it. Stages of different plans that hold most of "
            "the same modules have one colour."
        )
        + '<div class="side">'
        + "".join(
            f"<div><h3>{html.escape(plan.name)}: {len(plan.plan.stages)} stages, depth {plan.plan.depth}</h3>"
            + figure(f"stage-graph-{number}", f"The stages of {plan.name}", stage_figure(plan.plan, hues))
            + "</div>"
            for number, (plan, hues) in enumerate(zip(compared, _hues(compared), strict=True))
        )
        + "</div>"
    )


def _timelines(compared: Sequence[ComparedPlan]) -> str:
    used = {span.kind for plan in compared for trace in plan.subject.traces for span in trace.spans}
    shades = [(colour(kind, 0), KIND_WORDS[kind] + shade) for kind, shade in SHADES.items() if kind in used]
    others = [(shade, KIND_WORDS[kind]) for kind, shade in IDLE.items()]
    others += [(colour("optimizer", 0), KIND_WORDS["optimizer"])]
    return (
        note(
            "All steps have one time axis. Each stage has a row, which shows one replica. Its colour is that of "
            "its box, and the shade says what it does. Numbers are micro-batches."
        )
        + legend([*shades, *others])
        + figure(
            "timeline-figure",
            "One training step of each plan, a row per stage",
            compared_timeline_figure(drawn_steps(compared)),
        )
    )


def _hues(compared: Sequence[ComparedPlan]) -> list[tuple[int, ...]]:
    return matched_hues([plan.plan for plan in compared])


def _memory(compared: Sequence[ComparedPlan]) -> str:
    peaks = device_peaks(compared)
    unit, size = byte_unit(max(peak.bytes for peak in peaks))
    rows = [
        [
            peak.plan,
            peak.name,
            in_unit(peak.bytes, size),
            in_unit(peak.capacity, size),
            f"{peak.bytes / peak.capacity:.0%}",
        ]
        for peak in peaks
    ]
    return (
        note(
            "The simulated peak of one device of each stage. A red mark shows the capacity of the device. The buttons "
            "show the bars alone, or the capacities too."
        )
        + figure("memory-figure", "Peak memory by plan and stage", compared_memory_figure(peaks))
        + table(f"Peak memory in {unit}", ("plan", "stages", "peak", "capacity", "share"), rows, words=2)
    )
