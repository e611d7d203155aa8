"""The Chrome export: the events that viewers need, without overlaps within a thread."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders import plans
from hypothesis import given, settings

from graphpipe.errors import InvalidInput
from graphpipe.plans import Plan
from graphpipe.simulator.simulate import simulate
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


def arrows(trace: Trace) -> list[tuple[str, float, str, float]]:
    """Return (thread, microseconds) of both ends of every flow."""
    events = to_chrome([trace])["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    assert tails.keys() == heads.keys()
    ends = [(tails[name], heads[name]) for name in tails]
    return [(threads[tail["tid"]], tail["ts"], threads[head["tid"]], head["ts"]) for tail, head in ends]


def test_an_arrow_leads_from_every_send_to_its_receive():
    assert arrows(TRACE) == [("a to b", 1000, "b from a", 1000)]


def test_arrows_join_messages_in_their_order_and_never_point_back():
    # Measured: the receiver waits from the start, and the second message is the shorter one.
    spans = (
        span(0, "send", 0.001, 0.002, peer=1),
        span(0, "send", 0.002, 0.003, micro_batch=1, peer=1),
        span(1, "receive", 0.000, 0.0021, peer=0),
        span(1, "receive", 0.0021, 0.0031, micro_batch=1, peer=0),
    )
    assert arrows(replace(TRACE, spans=spans)) == [
        ("a to b", pytest.approx(1000), "b from a", pytest.approx(1000)),
        ("a to b", pytest.approx(2000), "b from a", pytest.approx(2100)),
    ]


def test_sends_without_receives_have_no_arrows():
    assert arrows(replace(TRACE, spans=(span(0, "send", 0.0, 0.001, peer=1),))) == []


REQUIRED = {
    "M": {"args"},
    "X": {"ts", "dur", "cat", "args"},
    "C": {"ts", "args"},
    "s": {"ts", "id", "cat"},
    "f": {"ts", "id", "cat", "bp"},
}
"""The fields that the trace event format requires for every phase, besides ph, name, pid and tid.

Perfetto's own trace processor is not used here. Its Python package downloads the program on first use, and the tests
run without a network.
"""


def check_format(document: dict[str, Any]) -> None:
    """Check a document against the trace event format, as its viewers read it."""
    assert set(document) == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        assert event.keys() == {"ph", "name", "pid", "tid"} | REQUIRED[event["ph"]]
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert set(event["args"]) == {"sort_index" if event["name"].endswith("sort_index") else "name"}
    for found in slices.values():
        found.sort()
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(found))
    for event in document["traceEvents"]:
        if event["ph"] in "sf":  # A flow that does not end in a slice is not shown.
            inside = slices[event["pid"], event["tid"]]
            assert any(start - 1e-6 <= event["ts"] <= end + 1e-6 for start, end in inside)
            assert event.get("bp", "e") == "e"


def test_the_format_is_that_of_trace_events():
    check_format(json.loads(json.dumps(to_chrome([TRACE, replace(TRACE, source="measured")]), allow_nan=False)))


@given(plans(batch_size=8))
@settings(max_examples=15, deadline=None)
def test_any_simulated_step_is_in_the_format_with_an_arrow_per_transfer(plan: Plan):
    trace = simulate(plan)
    document = to_chrome([trace])
    check_format(document)
    sends = sum(span.kind == "send" for span in trace.spans)
    assert sum(event["ph"] == "s" for event in document["traceEvents"]) == sends
    ends = {event["id"]: event["ts"] for event in document["traceEvents"] if event["ph"] == "f"}
    starts = {event["id"]: event["ts"] for event in document["traceEvents"] if event["ph"] == "s"}
    assert all(starts[name] <= ends[name] for name in starts)


@given(plans(batch_size=8))
@settings(max_examples=15, deadline=None)
def test_a_track_per_device_and_direction_a_flow_per_transfer_a_counter_per_device(plan: Plan):
    predicted = simulate(plan)
    events = to_chrome([predicted, replace(predicted, source="measured")])["traceEvents"]
    spans = predicted.spans
    computing = {span.device for span in spans if span.kind in ("F", "B", "I", "W", "optimizer")}
    directions = {(span.kind, span.device, span.peer) for span in spans if span.kind in ("send", "receive")}
    directions |= {(span.kind, span.device, span.peer) for span in spans if span.kind in ("evict", "fetch")}
    reducing = {span.device for span in spans if span.kind == "reduce"}
    kinds = Counter((event["pid"], event["ph"], event["name"] if event["ph"] == "M" else "") for event in events)
    for process in (0, 1):
        assert kinds[process, "M", "process_name"] == 1
        assert kinds[process, "M", "thread_name"] == len(computing) + len(directions) + len(reducing)
        assert kinds[process, "X", ""] == len(spans)
        transfers = sum(span.kind == "send" for span in spans)
        assert (kinds[process, "s", ""], kinds[process, "f", ""]) == (transfers, transfers)
        assert kinds[process, "C", ""] == len(predicted.memory)
    tracks = {(event["pid"], event["name"]) for event in events if event["ph"] == "C"}
    devices = {predicted.device_names[sample.device] for sample in predicted.memory}
    assert tracks == {(process, f"memory of {device}") for process in (0, 1) for device in devices}
    assert len(devices) == len(plan.used_devices)


def test_the_file_is_the_object(tmp_path: Path):
    save_chrome(tmp_path / "trace.json", [TRACE])
    assert json.loads((tmp_path / "trace.json").read_text()) == to_chrome([TRACE])


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        save_chrome(tmp_path / "file" / "trace.json", [TRACE])
