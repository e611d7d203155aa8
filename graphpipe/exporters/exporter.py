"""The record that a format of other tools declares: its name and how a plan is written in it."""

from collections.abc import Callable
from dataclasses import dataclass

from graphpipe.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan as another tool reads it."""

    text: str
    """The text of the whole file."""
    notes: tuple[str, ...] = ()
    """What the other tool does differently from the plan, or needs to be told: one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A format. `graphpipe.exporters.registry` lists all of them by name."""

    name: str
    """The name of the format, as `graphpipe export --format` takes it."""
    summary: str
    """What is written, as the end of a line of `--help`."""
    write: Callable[[Plan], Exported]
    """Writes a plan. Raises `InvalidInput` if the tool cannot run it: the message names the edge or the stage."""
