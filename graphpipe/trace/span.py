"""A span: one piece of work of one device, and a sample of its memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput, check_not_negative

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
"""The name of each kind of span. Files say `evict` for the copy that offloads, and `fetch` for the copy back."""
COMPUTING: frozenset[SpanKind] = frozenset(("F", "B", "I", "W", "optimizer"))
"""The kinds of spans in which a device computes: tasks and the optimizer, not transfers or reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One piece of work of one device. Seconds count from the start of the step."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    device: int
    kind: SpanKind
    stage: int
    micro_batch: int
    """Number of the micro-batch; -1 for the whole mini-batch (reduce, optimizer). In a segment, an optimizer step has
    its mini-batch's number."""
    start_seconds: float
    end_seconds: float
    peer: int = -1
    """The other device of a transfer, or the neighbour of a copy; -1 for a copy to or from the memory of the node."""
    bytes: float = 0.0
    """Bytes of a transfer."""

    def check(self, devices: int, stages: int, where: str) -> None:
        """Check the numbers of a span that was read from a file.

        Args:
            devices: how many the trace names.
            stages: a number that `stage` must be below.
            where: the span is, for errors.

        Raises:
            InvalidInput: names the first field that is wrong.
        """
        if self.peer != -1:
            check_place(self.peer, devices, f"{where}.peer")
        check_place(self.stage, stages, f"{where}.stage")
        if self.micro_batch < -1:
            raise InvalidInput(f"is {self.micro_batch}, must be at least -1", where=f"{where}.micro_batch")
        check_not_negative(self.start_seconds, f"{where}.start_seconds")
        check_not_negative(self.end_seconds, f"{where}.end_seconds")
        if self.end_seconds < self.start_seconds:
            what = f"is {self.end_seconds}, but the span starts later, at {self.start_seconds}"
            raise InvalidInput(what, where=f"{where}.end_seconds")
        check_not_negative(self.bytes, f"{where}.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Bytes held by a device from this time on."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    device: int
    seconds: float
    bytes: float

    def check(self, devices: int, where: str) -> None:
        """Check the numbers of a sample that was read from a file, from a trace of so many devices.

        Raises:
            InvalidInput: names the first field that is wrong.
        """
        check_place(self.device, devices, f"{where}.device")
        check_not_negative(self.seconds, f"{where}.seconds")
        check_not_negative(self.bytes, f"{where}.bytes")


def check_place(number: int, count: int, where: str) -> None:
    """Raise InvalidInput unless the number is that of one of `count` things."""
    if not 0 <= number < count:
        raise InvalidInput(f"is {number}, must be from 0 to {count - 1}", where=where)
