"""The trace: the timed work of every device, predicted or measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from graphpipe.files.json_body import from_body
from graphpipe.files.json_document import read_document, write_document

SpanKind = Literal["F", "B", "I", "W", "send", "receive", "reduce", "optimizer", "evict", "fetch"]
SPAN_WORDS: Mapping[SpanKind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "send": "send",
    "receive": "receive",
    "reduce": "reduction of gradients",
    "optimizer": "optimizer",
    "evict": "copy out",
    "fetch": "copy back",
}
"""The name of each kind of span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One piece of work of one device. Seconds count from the start of the step."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    device: int
    kind: SpanKind
    stage: int
    micro_batch: int
    """-1 for the whole mini-batch (reduce, optimizer). In a segment, an optimizer step has its mini-batch's number."""
    start_seconds: float
    end_seconds: float
    peer: int = -1
    """The other device of a transfer, or the neighbour of a copy. -1: the memory of the node."""
    bytes: float = 0.0
    """Bytes of a transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Bytes held by a device from this time on."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    device: int
    seconds: float
    bytes: float


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
    """By device, then start."""
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
            if span.kind in ("F", "B", "I", "W", "optimizer"):
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
            InvalidInput: the file is not a valid trace of this schema version.
        """
        return read_document(path, "trace", lambda body: from_body(Trace, body, str(path)))
