"""A measured trace holds every task of every rank, in its order."""

from itertools import pairwise
from pathlib import Path

import pytest
from run_models import BATCH, STAGES, fan_batch
from run_ranks import run_ranks, values
from run_scenarios import build, traced

from graphpipe.errors import InvalidInput
from graphpipe.files.json_body import from_body
from graphpipe.trace import Trace


def check(trace: Trace, cut: str) -> None:
    expected = {
        (kind, stage, device, index)
        for stage, (_, devices, size) in enumerate(STAGES[cut])
        for device in devices
        for index in range(BATCH // size)
        for kind in "FB"
    }
    tasks = [span for span in trace.spans if span.kind in "FB"]
    assert len(tasks) == len(expected)
    assert {(span.kind, span.stage, span.device, span.micro_batch) for span in tasks} == expected
    assert all(0 <= span.start_seconds <= span.end_seconds <= trace.step_seconds for span in trace.spans)
    assert 0 < trace.bubble_fraction < 1
    assert trace.source == "measured"


def test_one_rank() -> None:
    pipeline, _ = build("mixed", record=True)
    with pytest.raises(InvalidInput, match="no step was recorded"):
        pipeline.trace()
    pipeline.step(*fan_batch())
    pipeline.step(*fan_batch())
    trace = pipeline.trace()
    check(trace, "mixed")
    spans = trace.spans
    assert all(a.end_seconds <= b.start_seconds for a, b in pairwise(spans) if a.device == b.device)


def test_four_ranks(tmp_path: Path) -> None:
    bodies = values(run_ranks(traced, 4, tmp_path, "replicas"))
    traces = [from_body(Trace, body, "trace") for body in bodies]
    assert all(trace == traces[0] for trace in traces)
    check(traces[0], "replicas")
    received = [span for span in traces[0].spans if span.kind == "receive"]
    assert {(span.device, span.peer) for span in received} == {(0, 2), (0, 3), (1, 2), (1, 3)} | {
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
    }
    assert sum(span.bytes for span in received if span.device in (2, 3)) == 2 * BATCH * 8 * 4
    assert all(peak > 0 for peak in traces[0].peak_bytes)
