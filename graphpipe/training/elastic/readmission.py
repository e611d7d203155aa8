"""Probes lost devices while a run continues without them. A device that answers is used again after a checkpoint."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from graphpipe.training.run_folder.run_folder import RunFolder

PROBE_SECONDS, POLL_SECONDS = 60.0, 0.1


@dataclass(slots=True, kw_only=True)
class Readmission:
    """Probes lost devices in a thread while ranks run in the block."""

    folder: RunFolder
    probe_at: Mapping[str, float]
    """When to probe each lost device, by its name, in seconds of `time.monotonic`."""
    every_seconds: float
    """Time between two probes of a device that did not answer."""
    environment: Callable[[str], Mapping[str, str]]
    """Returns the variables that make a device, given by its name, the only one that a probe sees."""
    tell: Callable[[str], None]
    """Called with a line when a device answers."""
    back: list[str] = field(default_factory=list[str])
    """The devices that have answered."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def accepted(self) -> bool:
        """Return whether the ranks have left because a device is back."""
        return bool(self.back) and not self.folder.leave_request.exists()

    def begin_again(self) -> None:
        """Probe the devices of `probe_at`, which may have changed. A device that has answered stays accepted."""
        self._end()
        if not self.back:
            self._begin()

    def __enter__(self) -> Self:
        """Start the thread."""
        self.folder.leave_request.unlink(missing_ok=True)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the thread and its probe."""
        self._end()

    def _begin(self) -> None:
        self._ended.clear()
        if self.probe_at:
            self._thread = threading.Thread(target=self._probe_all, daemon=True, name="graphpipe-readmission")
            self._thread.start()

    def _end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _probe_all(self) -> None:
        # Until one device answers. The ranks are then asked to leave.
        probe_at = dict(self.probe_at)
        while not self._ended.wait(max(0.0, min(probe_at.values()) - time.monotonic())):
            name = min(probe_at, key=lambda each: probe_at[each])
            probe_at[name] = time.monotonic() + self.every_seconds
            if self._answers(name):
                self.back.append(name)
                self.tell(f"device {name} answers again: it will be used after the next checkpoint")
                self.folder.leave_request.write_text(name, encoding="utf-8")
                return

    def _answers(self, name: str) -> bool:
        environment = os.environ | dict(self.environment(name))
        command = [sys.executable, "-m", "graphpipe.training.elastic.device_probe"]
        probe = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PROBE_SECONDS
        while probe.poll() is None and time.monotonic() < end and not self._ended.wait(POLL_SECONDS):
            pass
        if probe.poll() is None:
            probe.kill()
        return probe.wait() == 0
