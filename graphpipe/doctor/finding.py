"""`Finding`: the result of a check."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["fine", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about an installation."""

    name: str
    """What was checked."""
    status: Status
    """How well things work. With a `warning`, everything works but worse than it could. With a `problem`, something
    cannot work."""
    what: str
    """The fact."""
    remedy: str = ""
    """What to do, as a sentence; empty if nothing needs to be done."""
