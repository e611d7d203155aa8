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
from torch import Tensor
from torch.profiler import profile, record_function

from graphpipe.devices.registry import kind_of

_FORWARD, _BACKWARD = "a forward that is measured", "its backward"
_LOG_LEVEL = "KINETO_LOG_LEVEL"
"""The environment variable that says what torch's profiler writes to standard error."""
_NOTHING = "99"


@dataclass(frozen=True, slots=True)
class PassingBytes:
    """Peak bytes of a forward beyond what remains at its end, and of a backward beyond what was held at its start."""

    forward: float
    backward: float


def passing_bytes(forward: Callable[[], Sequence[Tensor]], device: torch.device) -> PassingBytes:
    """Run a forward and the backward of what it returns, and return the memory that passes in each.

    Args:
        forward: returns the roots of the backward.
        device: where it runs. On the host, torch's profiler watches the allocator.
    """
    return _by_trace(forward) if kind_of(device).on_host else _by_allocator(forward, device)


def _by_allocator(forward: Callable[[], Sequence[Tensor]], device: torch.device) -> PassingBytes:
    kind = kind_of(device)
    kind.reset_peak(device)
    roots = forward()
    passing = kind.peak_bytes(device) - kind.held_bytes(device)
    gradients = [torch.ones_like(root) for root in roots]
    before = kind.held_bytes(device)
    kind.reset_peak(device)
    if roots:
        torch.autograd.backward(roots, gradients)
    return PassingBytes(passing, max(0.0, kind.peak_bytes(device) - before))


def _by_trace(forward: Callable[[], Sequence[Tensor]]) -> PassingBytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        with _quiet(), profile(profile_memory=True) as trace:
            with record_function(_FORWARD):
                roots = forward()
            gradients = [torch.ones_like(root) for root in roots]
            with record_function(_BACKWARD):
                if roots:
                    torch.autograd.backward(roots, gradients)
        trace.export_chrome_trace(str(file))
        return _passing(json.loads(file.read_text(encoding="utf-8"))["traceEvents"])


def _passing(events: Iterable[Mapping[str, Any]]) -> PassingBytes:
    events = [*events]
    spans = {each["name"]: each for each in events if each.get("name") in (_FORWARD, _BACKWARD)}
    ended, started = spans[_FORWARD]["ts"] + spans[_FORWARD]["dur"], spans[_BACKWARD]["ts"]
    changes = sorted((each["ts"], each["args"]["Bytes"]) for each in events if each.get("name") == "[memory]")
    most, held = _peak(count for moment, count in changes if moment <= ended)
    returning, _ = _peak(count for moment, count in changes if moment >= started)
    return PassingBytes(most - held, returning)


def _peak(changes: Iterable[float]) -> tuple[float, float]:
    sums = [*accumulate(changes, initial=0.0)]
    return max(sums), sums[-1]


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
