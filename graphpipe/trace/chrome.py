"""Traces in the Chrome trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Each trace is a process, so that a prediction is shown above its measurement. A process has for each device a thread of
computation, a thread for each direction of transfers and of copies to the host, a thread of reductions, and a counter
of memory. An arrow (a flow) connects every send to its receive.

The format: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphpipe.files.text_file import write_text
from graphpipe.trace.span import Span
from graphpipe.trace.trace import Trace

Event = dict[str, Any]
Thread = tuple[int, int, int]
"""Device; 0 to compute, 1 to send, 2 to receive, 3 to reduce, 4 or 5 to copy to or from the host, then the peer."""
_DIRECTIONS = {"send": 1, "receive": 2, "reduce": 3, "evict": 4, "fetch": 5}


def to_chrome(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the JSON object of these traces, in the "JSON object format". Times are in microseconds."""
    events = [event for process, trace in enumerate(traces) for event in _trace_events(process, trace)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_chrome(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write the traces to a JSON file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    write_text(path, json.dumps(to_chrome(traces)) + "\n")


def _trace_events(process: int, trace: Trace) -> list[Event]:
    threads = sorted({_thread_of(span) for span in trace.spans})
    number_of = {thread: number for number, thread in enumerate(threads, start=1)}
    name = f"{trace.source}: {trace.step_seconds * 1e3:.3g} ms, {trace.batch_size} samples"
    events = [_name("process_name", process, 0, name)]
    events.append(_event("M", "process_sort_index", process, 0, args={"sort_index": process}))
    for thread in threads:
        events.append(_name("thread_name", process, number_of[thread], _thread_name(trace, thread)))
        events.append(
            _event("M", "thread_sort_index", process, number_of[thread], args={"sort_index": number_of[thread]})
        )
    events += [_span_event(process, number_of[_thread_of(span)], span) for span in trace.spans]
    for number, (send, receive) in enumerate(_transfers(trace)):
        events += _arrow(
            f"{process}.{number}",
            process,
            (number_of[_thread_of(send)], send),
            (number_of[_thread_of(receive)], receive),
        )
    for sample in trace.memory:
        counter = f"memory of {trace.device_names[sample.device]}"
        events.append(_event("C", counter, process, 0, ts=sample.seconds * 1e6, args={"bytes": sample.bytes}))
    return events


def _transfers(trace: Trace) -> list[tuple[Span, Span]]:
    """Return every send with its receive. Between two devices, messages arrive in the order in which they are sent."""
    sent: dict[tuple[int, int], list[Span]] = {}
    received: dict[tuple[int, int], list[Span]] = {}
    for span in trace.spans:
        if span.kind == "send":
            sent.setdefault((span.device, span.peer), []).append(span)
        elif span.kind == "receive":
            received.setdefault((span.peer, span.device), []).append(span)
    pairs: list[tuple[Span, Span]] = []
    for channel, sends in sent.items():
        receives = received.get(channel, [])
        if len(receives) == len(sends):  # Otherwise one side was not recorded, and messages cannot be matched.
            pairs += zip(sorted(sends, key=_end), sorted(receives, key=_end), strict=True)
    return pairs


def _end(span: Span) -> tuple[float, float]:
    return span.end_seconds, span.start_seconds


def _arrow(name: str, process: int, tail: tuple[int, Span], head: tuple[int, Span]) -> list[Event]:
    # A viewer attaches each end to the span of its thread at that time. An arrow must not point back in time.
    (from_thread, send), (to_thread, receive) = tail, head
    start = send.start_seconds
    end = min(max(start, receive.start_seconds), receive.end_seconds)
    return [
        _event("s", "transfer", process, from_thread, ts=min(start, end) * 1e6, id=name, cat="transfer"),
        _event("f", "transfer", process, to_thread, ts=end * 1e6, bp="e", id=name, cat="transfer"),
    ]


def _thread_of(span: Span) -> Thread:
    # Spans of one thread must not overlap. One direction between two devices carries one transfer at a time.
    return span.device, _DIRECTIONS.get(span.kind, 0), span.peer


def _thread_name(trace: Trace, thread: Thread) -> str:
    device, what, peer = thread
    name = trace.device_names[device]
    other = trace.device_names[peer] if peer >= 0 else "?"
    ways = (f"to {other}", f"from {other}", "reduce", "to host", "from host")
    return f"{name} {ways[what - 1]}" if what else name


def _span_event(process: int, thread: int, span: Span) -> Event:
    label = f"{span.kind}{span.stage}" + (f".{span.micro_batch}" if span.micro_batch >= 0 else "")
    args: Event = {"stage": span.stage, "micro_batch": span.micro_batch}
    if span.bytes:
        args["bytes"] = span.bytes
    start, length = span.start_seconds * 1e6, (span.end_seconds - span.start_seconds) * 1e6
    return _event("X", label, process, thread, ts=start, dur=length, cat=span.kind, args=args)


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return _event("M", kind, process, thread, args={"name": name})


def _event(phase: str, name: str, process: int, thread: int, **more: Any) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": thread, **more}
