"""The trace: the timed work of every device, predicted or measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput, check_not_negative
from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document
from graphpipe.trace.span import COMPUTING, MemorySample, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One predicted, emulated or measured training step."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: Literal["simulated", "emulated", "measured"]
    plan_fingerprint: str
    batch_size: int
    device_names: tuple[str, ...]
    used_devices: tuple[int, ...]
    step_seconds: float
    spans: tuple[Span, ...]
    """All spans, ordered by device, then by start."""
    memory: tuple[MemorySample, ...] = ()
    slowdown: float = 1.0
    """How many times longer a rehearsal took than the plan says, so that the machine could keep its times. All seconds
    of this trace are divided by it."""

    def divided(self, slowdown: float) -> "Trace":
        """Return the trace with all its seconds divided by `slowdown`."""
        spans = (
            replace(span, start_seconds=span.start_seconds / slowdown, end_seconds=span.end_seconds / slowdown)
            for span in self.spans
        )
        return replace(
            self,
            step_seconds=self.step_seconds / slowdown,
            spans=tuple(spans),
            memory=tuple(replace(sample, seconds=sample.seconds / slowdown) for sample in self.memory),
            slowdown=self.slowdown * slowdown,
        )

    @property
    def samples_per_second(self) -> float:
        """Throughput."""
        return self.batch_size / self.step_seconds if self.step_seconds else 0.0

    @property
    def busy_seconds(self) -> dict[int, float]:
        """Seconds each device spent computing (tasks and optimizer, not transfers or reductions)."""
        busy = dict.fromkeys(self.used_devices, 0.0)
        for span in self.spans:
            if span.kind in COMPUTING:
                busy[span.device] += span.end_seconds - span.start_seconds
        return busy

    @property
    def bubble_fraction(self) -> float:
        """Share of device time, over the devices in use, that is not `busy_seconds`."""
        total = self.step_seconds * len(self.used_devices)
        return 1.0 - sum(self.busy_seconds.values()) / total if total else 0.0

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Peak memory of each device of the cluster; 0 if it was not recorded."""
        peak = [0.0] * len(self.device_names)
        for sample in self.memory:
            peak[sample.device] = max(peak[sample.device], sample.bytes)
        return tuple(peak)

    def save(self, path: str | Path) -> None:
        """Write the trace as a JSON document."""
        write_document(path, "trace", self)

    @staticmethod
    def load(path: str | Path) -> "Trace":
        """Read a trace written by `save`.

        Raises:
            InvalidInput: the file is not a valid trace of this schema version, or names a device that it does not use.
        """
        trace = read_document(path, "trace", lambda body: from_body(Trace, body, str(path)))
        trace.check(str(path))
        return trace

    def check(self, path: str) -> None:
        """Check what a file holds: the trace can be drawn, without its plan.

        Args:
            path: of the file, for errors.

        Raises:
            InvalidInput: names the first field that is wrong.
        """
        if self.batch_size < 1:
            raise InvalidInput(f"is {self.batch_size}, must be at least 1", where=f"{path}, field batch_size")
        check_not_negative(self.step_seconds, f"{path}, field step_seconds")
        if not 0 < self.slowdown < math.inf:
            raise InvalidInput(f"is {self.slowdown}, must be finite and more than 0", where=f"{path}, field slowdown")
        devices, used = len(self.device_names), frozenset(self.used_devices)
        for at, device in enumerate(self.used_devices):
            if not 0 <= device < devices or device in self.used_devices[:at]:
                what = f"is {device}, must be another device than those before it, from 0 to {devices - 1}"
                raise InvalidInput(what, where=f"{path}, field used_devices.{at}")
        for at, span in enumerate(self.spans):
            where = f"{path}, field spans.{at}"
            if span.device not in used:
                raise InvalidInput(f"is {span.device}, which is not among used_devices", where=f"{where}.device")
            span.check(devices, len(self.spans), where)  # every stage has at least one span
        for at, sample in enumerate(self.memory):
            sample.check(devices, f"{path}, field memory.{at}")


def median_trace(traces: Sequence[Trace]) -> Trace:
    """Return the trace with the median time of a step: of an even number, the slower one of both in the middle."""
    by_time = sorted(traces, key=lambda trace: trace.step_seconds)
    return by_time[len(by_time) // 2]
