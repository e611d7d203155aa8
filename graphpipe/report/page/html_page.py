"""A self-contained HTML page of headings, figures and tables. It loads nothing from the network.

Plotly's script of 4.8 MB is in the page as gzip in base64, 2.0 MB, and the browser unpacks it. Plotly's package has no
smaller script, such as one without maps.
"""

import base64
import gzip
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from plotly.offline import get_plotlyjs

from graphpipe.report.figures.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """One section of the page."""

    name: str
    """The id of the section's HTML element: letters and hyphens."""
    title: str
    body: str
    """The HTML below the title."""


def html_page(title: str, lead: str, sections: Sequence[PageSection]) -> str:
    """Return the whole document.

    Args:
        title: plain text.
        lead: the HTML below the title.
        sections: from top to bottom.
    """
    links = "".join(f'<li><a href="#{section.name}">{html.escape(section.title)}</a></li>' for section in sections)
    bodies = "".join(
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">'
        f'<h2 id="{section.name}-title">{html.escape(section.title)}</h2>{section.body}</section>'
        for section in sections
    )
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        lead=lead,
        links=links,
        sections=bodies,
        style=_asset("page.css"),
        plotly=_packed(get_plotlyjs()),
        scripts=_asset("timeline.js") + _asset("page.js"),
    )


def figure(name: str, label: str, content: Figure) -> str:
    """Return a figure's HTML. The page draws the figure when it scrolls into view.

    Args:
        name: the id of its HTML element.
        label: a description for screen readers.
        content: the figure.
    """
    controls = _CONTROLS if content.kind == "timeline" else _ranges(name, content)
    size = f"height:{content.height}px;min-width:{content.least_width}px"
    size += f";max-width:{content.most_width}px" if content.most_width else ""
    return (
        f'{controls}<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f'<div class="figure" id="{name}" style="{size}"></div>'
        f'</div><script type="application/json" data-figure="{name}">{content.script()}</script>'
    )


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a table of plain text. The first `words` columns hold words, the others numbers."""
    kinds = [' class="word"' if number < words else ' class="number"' for number in range(len(headings))]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(text)}</th>' for kind, text in zip(kinds, headings, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html.escape(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f"<h3>{html.escape(caption)}</h3>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def note(text: str) -> str:
    """Return a paragraph of plain text."""
    return f'<p class="note">{html.escape(text)}</p>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend of (colour, meaning) pairs."""
    items = "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{html.escape(meaning)}</li>'
        for colour, meaning in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _ranges(name: str, content: Figure) -> str:
    # Buttons for the parts of the horizontal axis that the figure names.
    buttons = "".join(
        f'<button type="button" data-of="{name}" data-range="{low},{high}">{html.escape(text)}</button>'
        for text, (low, high) in content.extra.get("ranges", {}).items()
    )
    return (
        f'<div class="controls" role="group" aria-label="Visible part of the axis">{buttons}</div>' if buttons else ""
    )


_CONTROLS = (
    '<div class="controls" role="group" aria-label="Visible part of the step">'
    + "".join(
        f'<button type="button" data-zoom="{what}">{text}</button>'
        for what, text in (
            ("in", "Zoom in"),
            ("out", "Zoom out"),
            ("earlier", "Earlier"),
            ("later", "Later"),
            ("all", "Whole step"),
        )
    )
    + "</div>"
)


@cache
def _packed(script: str) -> str:
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return (files("graphpipe.report.page") / "assets" / name).read_text(encoding="utf-8")
