"""What a rank notes about its own process for its launcher: that it has begun, and that its work is done.

A rank that is stopped, or hangs while its process ends, cannot say so any more. The launcher reads these notes instead.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphpipe.run.faults.rank_status import STATUS_FOLDER


@dataclass(frozen=True, slots=True)
class LifeNotes:
    """The notes of one process. Its number is the rank with which it was started."""

    folder: Path
    number: int

    @staticmethod
    def here() -> "LifeNotes | None":
        """Return the notes of this process. None: `launch` did not start it."""
        folder, number = os.environ.get(STATUS_FOLDER), os.environ.get("LOCAL_RANK", "")
        return LifeNotes(Path(folder), int(number)) if folder and number.isdigit() else None

    def begin(self) -> None:
        """Note that this process runs."""
        self._write("begun", str(os.getpid()))

    def end(self) -> None:
        """Note that the work of this process is done: all its results are written."""
        self._write("done", "")

    @property
    def pid(self) -> int | None:
        """The process id, once the process has begun."""
        try:
            text = self._path("begun").read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        return int(text) if text else None  # It is empty while it is written.

    @property
    def is_done(self) -> bool:
        """Whether the work is done."""
        return self._path("done").exists()

    def _write(self, name: str, text: str) -> None:
        with suppress(OSError):  # The disk is full. The rank then counts as one that never said anything.
            self._path(name).write_text(text, encoding="ascii")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}-{self.number}"
