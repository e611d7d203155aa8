"""What a check found."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["fine", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about an installation."""

    name: str
    """Of what was checked."""
    status: Status
    """A warning lets work go on, worse than it could; with a problem something cannot work."""
    what: str
    """The fact."""
    remedy: str = ""
    """What to do, as a sentence; empty where nothing needs to be done."""
