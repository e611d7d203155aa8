"""The Chrome export: what the viewers need, nothing overlapping within a thread."""

import json
from pathlib import Path

import pytest

from graphpipe.errors import InvalidInput
from graphpipe.trace import MemorySample, Span, SpanKind, Trace, save_chrome, to_chrome


def span(device: int, kind: SpanKind, start: float, end: float, *, micro_batch: int = 0, peer: int = -1) -> Span:
    return Span(
        device=device,
        kind=kind,
        stage=device,
        micro_batch=micro_batch,
        start_seconds=start,
        end_seconds=end,
        peer=peer,
        bytes=8.0 if peer >= 0 else 0.0,
    )


TRACE = Trace(
    source="simulated",
    plan_fingerprint="p",
    batch_size=2,
    device_names=("a", "b"),
    used_devices=(0, 1),
    step_seconds=0.004,
    spans=(
        span(0, "F", 0, 0.001),
        span(0, "F", 0.001, 0.002, micro_batch=1),
        span(0, "send", 0.001, 0.003, peer=1),
        span(1, "receive", 0.001, 0.003, peer=0),
        span(1, "reduce", 0.003, 0.004, micro_batch=-1),
    ),
    memory=(MemorySample(device=1, seconds=0.001, bytes=64),),
)


def test_spans_are_complete_events_in_microseconds_on_named_threads():
    events = to_chrome([TRACE])["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found = [(threads[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert found == [
        ("a", "F0.0", 0, pytest.approx(1000)),
        ("a", "F0.1", 1000, pytest.approx(1000)),
        ("a to b", "send0.0", 1000, pytest.approx(2000)),
        ("b from a", "receive1.0", 1000, pytest.approx(2000)),
        ("b reduce", "reduce1", 3000, pytest.approx(1000)),
    ]
    assert next(e["args"]["bytes"] for e in events if e["name"] == "send0.0") == 8


def test_memory_is_a_counter_per_device():
    events = [event for event in to_chrome([TRACE])["traceEvents"] if event["ph"] == "C"]
    assert [(e["name"], e["ts"], e["args"]) for e in events] == [("memory of b", 1000, {"bytes": 64})]


def test_every_trace_is_a_process():
    events = to_chrome([TRACE, TRACE])["traceEvents"]
    names = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"]
    assert names == [(0, "simulated: 4 ms, 2 samples"), (1, "simulated: 4 ms, 2 samples")]


def test_the_file_is_the_object(tmp_path: Path):
    save_chrome(tmp_path / "trace.json", [TRACE])
    assert json.loads((tmp_path / "trace.json").read_text()) == to_chrome([TRACE])


def test_a_path_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        save_chrome(tmp_path / "file" / "trace.json", [TRACE])
