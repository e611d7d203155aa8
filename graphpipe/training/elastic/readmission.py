"""Lost devices that answer again: found while a run goes on without them, and taken back at its next checkpoint."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from graphpipe.run.comm.world import World

REQUEST = "take-back"
"""A file in the run's folder: the ranks are to leave at their next checkpoint. Rank 0 removes it as they do."""

PROBE_SECONDS, POLL_SECONDS = 60.0, 0.1


@dataclass(frozen=True, slots=True)
class Leave:
    """The ranks' side of it."""

    world: World
    directory: Path
    """Of the run."""

    def asked(self) -> bool:
        """True on every rank if all are to leave now; every rank must call this, after it began a checkpoint."""
        request = self.directory / REQUEST
        asked = bool(self.world.exchange(self.world.rank == 0 and request.exists())[0])
        if asked and self.world.rank == 0:
            request.unlink()
        return asked


@dataclass(slots=True, kw_only=True)
class Readmission:
    """Looks for lost devices in a thread, while ranks run in the block. The ones that answer are in `back`."""

    directory: Path
    """Of the run."""
    due: Mapping[str, float]
    """When to look for a device, by name: seconds of `time.monotonic`."""
    every_seconds: float
    """Between two looks at a device that did not answer."""
    environment: Callable[[str], Mapping[str, str]]
    """Makes one device, by name, the one that the probe sees."""
    tell: Callable[[str], None]
    back: list[str] = field(default_factory=list[str])
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def left(self) -> bool:
        """True if the ranks have left for the sake of a device that is back."""
        return bool(self.back) and not (self.directory / REQUEST).exists()

    def __enter__(self) -> Self:
        """Begin to look."""
        (self.directory / REQUEST).unlink(missing_ok=True)
        if self.due:
            self._thread = threading.Thread(target=self._look, daemon=True, name="graphpipe-readmission")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop looking; no process is left."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        due = dict(self.due)
        while not self._over.wait(max(0.0, min(due.values()) - time.monotonic())):
            name = min(due, key=lambda each: due[each])
            due[name] = time.monotonic() + self.every_seconds
            if self._answers(name):
                self.back.append(name)
                self.tell(f"device {name} answers again: it is taken back at the next checkpoint")
                (self.directory / REQUEST).write_text(name, encoding="utf-8")
                return

    def _answers(self, name: str) -> bool:
        environment = os.environ | dict(self.environment(name))
        command = [sys.executable, "-m", "graphpipe.training.elastic.device_probe"]
        probe = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PROBE_SECONDS
        while probe.poll() is None and time.monotonic() < end and not self._over.wait(POLL_SECONDS):
            pass
        if probe.poll() is None:
            probe.kill()
        return probe.wait() == 0
