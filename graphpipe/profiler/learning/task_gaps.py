"""The seconds between tasks that follow each other at once: the runtime notes what it does, and finds the next one."""

from collections.abc import Iterator
from itertools import pairwise

from graphpipe.trace import Span, Trace

_LEAST = 1e-9
"""Seconds. Rounding makes shorter gaps."""


def task_gaps(predicted: Trace, measured: Trace) -> Iterator[float]:
    """Yield the measured seconds between two tasks of a device, if the second is predicted to wait for nothing else.

    Between other tasks are messages, or waits for other devices.
    """
    expected = {_of(one, other): other.start_seconds - one.end_seconds for one, other in _followers(predicted)}
    for one, other in _followers(measured):
        if expected.get(_of(one, other), 1.0) <= _LEAST:
            yield other.start_seconds - one.end_seconds


def _of(one: Span, other: Span) -> tuple[object, ...]:
    return one.device, *((span.kind, span.stage, span.micro_batch) for span in (one, other))


def _followers(trace: Trace) -> Iterator[tuple[Span, Span]]:
    tasks = [span for span in trace.spans if span.kind in ("F", "B", "I", "W")]  # by device, then by start
    return ((one, other) for one, other in pairwise(tasks) if one.device == other.device)
