"""Measured seconds of patterns, in memory and in the user's cache folder."""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from graphpipe.errors import InvalidInput
from graphpipe.files.cache_folder import keep_newest, make_private
from graphpipe.files.text_file import write_text

MOST_ENTRIES = 4096


@dataclass(slots=True, kw_only=True)
class TimingCache:
    """Seconds by key. A pattern that a backend cannot run has None."""

    folder: Path | None
    """The folder of what was measured; None keeps nothing."""
    known: dict[str, float | None] = field(default_factory=dict[str, "float | None"])

    def __contains__(self, key: str) -> bool:
        """Return whether a key is known, here or in the folder."""
        if key not in self.known and self.folder is not None:
            with suppress(OSError, ValueError):
                seconds = json.loads((self.folder / key).read_text())
                if seconds is None or (isinstance(seconds, float) and math.isfinite(seconds) and seconds >= 0):
                    self.known[key] = seconds
        return key in self.known

    def __getitem__(self, key: str) -> float | None:
        """Return what is known."""
        return self.known[key]

    def __setitem__(self, key: str, seconds: float | None) -> None:
        """Keep a measurement. A folder that cannot be written only costs time."""
        self.known[key] = seconds
        if self.folder is not None:
            with suppress(OSError, InvalidInput):
                make_private(self.folder)
                write_text(self.folder / key, json.dumps(seconds))
                keep_newest(self.folder, MOST_ENTRIES)
