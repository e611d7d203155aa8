"""A panel of the report: one section of the page, with what builds it."""

from collections.abc import Callable
from dataclasses import dataclass

from graphpipe.report.content.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One section of the page. The functions in `html_page` make its HTML: `figure`, `table`, `note`, `legend`."""

    name: str
    """The id of the panel's HTML element: letters and hyphens."""
    title: str
    build: Callable[[Subject], str | None]
    """Returns the HTML below the title, or None if the subject has nothing to show here."""
