"""Ends ranks that do not stop when they are told to: torch's agent gives them half a minute.

A process that was stopped (SIGSTOP), or hangs in a driver, does not react to SIGTERM. The launcher can do nothing
meanwhile, although the other ranks have given up long ago.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from graphpipe.run.faults.rank_status import all_seen

GRACE_SECONDS, POLL_SECONDS = 2.0, 0.2


@dataclass(slots=True)
class Reaper:
    """While ranks run in the block: when one has failed, the others have a moment to end, and are killed then.

    It sees processes that have noted where they are, and are children of this one; no others.
    """

    folder: Path
    """Of the ranks' notes and error files."""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread = threading.Thread(target=self._look, daemon=True, name="graphpipe-reaper")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop looking."""
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if any(self.folder.rglob("error.json")):
                break
        end = time.monotonic() + GRACE_SECONDS
        while not self._over.wait(POLL_SECONDS):
            if time.monotonic() > end:
                self._kill()

    def _kill(self) -> None:
        ranks = {seen.pid for seen in all_seen(self.folder)}
        for child in psutil.Process().children():
            if child.pid in ranks:
                child.kill()
