"""The memory that passes while compiled code runs, as torch's allocators tell it.

A compiled kernel allocates outside of torch's operators, so nothing that watches operators sees it.
"""

import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from graphpipe.devices.registry import kind_of

_LOG_LEVEL = "KINETO_LOG_LEVEL"
"""The environment variable that says what torch's profiler writes to standard error."""
_NOTHING = "99"


@dataclass(frozen=True, slots=True)
class PassingBytes:
    """Peak bytes of a task beyond what was held at its start, and beyond what remains at its end."""

    over_start: float
    over_end: float


def passing_bytes(tasks: Sequence[Callable[[], object]], device: torch.device) -> list[PassingBytes]:
    """Run tasks one after the other, and return the memory that passes in each.

    Args:
        tasks: such as a forward and its backward.
        device: where they run. On the host, torch's profiler watches the allocator.
    """
    return _by_trace(tasks) if kind_of(device).on_host else [_by_allocator(task, device) for task in tasks]


def _by_allocator(task: Callable[[], object], device: torch.device) -> PassingBytes:
    kind = kind_of(device)
    before = kind.held_bytes(device)
    kind.reset_peak(device)
    task()
    peak = kind.peak_bytes(device)
    return PassingBytes(max(0.0, peak - before), peak - kind.held_bytes(device))


def _by_trace(tasks: Sequence[Callable[[], object]]) -> list[PassingBytes]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        with _quiet(), profile(profile_memory=True) as trace:
            for number, task in enumerate(tasks):
                with record_function(_name(number)):
                    task()
        trace.export_chrome_trace(str(file))
        events: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    spans = {each.get("name"): each for each in events}
    changes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each.get("name") == "[memory]")
    return [_passing(spans[_name(number)], changes) for number in range(len(tasks))]


def _name(number: int) -> str:
    return f"task {number} that is measured"


def _passing(span: Mapping[str, Any], changes: Iterable[tuple[float, float]]) -> PassingBytes:
    own = (count for moment, count in changes if span["ts"] <= moment <= span["ts"] + span["dur"])
    sums = [*accumulate(own, initial=0.0)]
    return PassingBytes(max(sums), max(sums) - sums[-1])


@contextmanager
def _quiet() -> Generator[None]:
    # Torch's profiler notes each of its beginnings and ends on standard error.
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _NOTHING
    try:
        yield
    finally:
        del os.environ[_LOG_LEVEL]
