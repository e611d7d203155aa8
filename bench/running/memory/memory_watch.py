"""What a process holds in no file, by phase: a thread reads it every few milliseconds, and writes it to a note."""

import json
import threading
from pathlib import Path
from typing import final

_SECONDS = 0.003
_STEP = 2**20
"""By how many bytes a phase's peak must grow before the note is written again."""


def anonymous_bytes() -> int:
    """Return the bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@final
class MemoryWatch:
    """Notes the peak of each phase, and what is held at marks. What the process holds now is the base.

    Args:
        note: the file, whose figures are bytes above the base.
    """

    def __init__(self, note: Path) -> None:
        self._note, self._base, self._phase = note, anonymous_bytes(), "start"
        self._most: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self._read()
        self._phase = name

    def mark(self, name: str) -> None:
        """Note what is held now, if it is more than at an earlier mark of this name."""
        self._raise(name, anonymous_bytes() - self._base)

    def _watch(self) -> None:
        tick = threading.Event()
        while not tick.wait(_SECONDS):
            self._read()

    def _read(self) -> None:
        self._raise(self._phase, anonymous_bytes() - self._base)

    def _raise(self, name: str, held: int) -> None:
        with self._lock:
            if held > self._most.get(name, -1):
                self._most[name] = held
                if held > self._written.get(name, -_STEP) + _STEP:
                    self._written[name] = held
                    part = self._note.with_suffix(".part")
                    part.write_text(json.dumps(self._most))
                    part.replace(self._note)
