"""The record that a format of other tools declares: its name and how a plan is written in it."""

from collections.abc import Callable
from dataclasses import dataclass

from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A format. `graphpipe.exporters.registry` lists all of them by name."""

    name: str
    """As `graphpipe export --format` takes it."""
    summary: str
    """What reads it, as the end of a line of `--help`."""
    write: Callable[[Plan], str]
    """Returns the text of the file. Raises `InvalidInput` if the tool cannot run such a plan."""
