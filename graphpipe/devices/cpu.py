"""The CPU: operations run when they are called, so there are no streams to wait for."""

import platform
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import final

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity

from graphpipe.devices.device_kind import DeviceClock, DeviceKind, Mark, Moment, Stream
from graphpipe.graph import PRECISIONS
from graphpipe.host_memory import available_host_bytes


@final
class HostStream(Stream):
    """Operations run when they are called, so there is nothing to wait for."""

    _nothing = nullcontext()

    def entered(self) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return self._nothing

    def mark(self) -> Mark:
        """Return a point that has passed."""
        return None

    def wait(self, mark: Mark) -> None:
        """Do nothing."""

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing."""


@final
class HostClock(DeviceClock):
    """The clock of the host."""

    def now(self) -> Moment:
        """Return seconds since an arbitrary start."""
        return time.perf_counter()

    def settle(self) -> None:
        """Do nothing."""

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the difference."""
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start


_STREAM = HostStream()


@final
class HostKind(DeviceKind):
    """The cores of the host, and its memory.

    Args:
        name: torch's name of the type.
        on_host: see `DeviceKind`.
    """

    backend = "gloo"
    matches_by_order = False
    closing_waits = False
    outlives_peers = True
    precisions = PRECISIONS
    activities = (ProfilerActivity.CPU,)

    def __init__(self, name: str, *, on_host: bool) -> None:
        self.name, self.on_host = name, on_host

    def count(self) -> int:
        """Return 1: torch has one device for all cores."""
        return 1

    def built_for(self) -> str:
        """Return its name: every torch computes on it."""
        return self.name

    def select(self, device: torch.device) -> None:
        """Do nothing."""

    def synchronize(self, device: torch.device | None = None) -> None:
        """Do nothing."""

    def describe(self, device: torch.device) -> str:
        """Return the processor's architecture."""
        return platform.machine()

    def backend_available(self) -> bool:
        """Return whether this torch was built with gloo."""
        return dist.is_available() and dist.is_gloo_available()

    def versions(self, *, used: bool) -> Mapping[str, str]:
        """Return nothing: torch brings gloo."""
        return {}

    def new_stream(self, device: torch.device) -> Stream:
        """Return the only stream."""
        return _STREAM

    def current_stream(self, device: torch.device) -> Stream:
        """Return the only stream."""
        return _STREAM

    def clock(self, device: torch.device) -> DeviceClock:
        """Return the clock of the host."""
        return HostClock()

    def held_bytes(self, device: torch.device) -> float:
        """Return the resident memory of this process."""
        return float(psutil.Process().memory_info().rss)

    def peak_bytes(self, device: torch.device) -> float:
        """Return the peak of the process so far, including torch itself (200 MiB)."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak if sys.platform == "darwin" else peak * 1024)

    def reset_peak(self, device: torch.device) -> None:
        """Do nothing: the system does not forget a process's peak."""

    def available_bytes(self, device: torch.device) -> float:
        """Return what all processes of the machine or container together may still allocate."""
        return available_host_bytes()

    def total_bytes(self, device: torch.device) -> float:
        """Return the memory of the machine."""
        return float(psutil.virtual_memory().total)

    def frequency(self, device: torch.device) -> float | None:
        """Return None: the cores of a host differ."""
        return None

    def host_buffer(self, count: int) -> Tensor:
        """Return ordinary memory."""
        return torch.empty(count, dtype=torch.uint8)

    def seed(self, number: int) -> None:
        """Do nothing: the CPU's generator is seeded for every kind."""

    def random_state(self, device: torch.device) -> Tensor | None:
        """Return None: its generator is the CPU's."""
        return None

    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        """Not called, because there is no state."""
        raise AssertionError("the CPU has no generator besides torch's own")


CPU = HostKind("cpu", on_host=True)
UNKNOWN = HostKind("unknown", on_host=False)
"""A kind that nobody has registered: its operations are called as the CPU's are, and end at an unknown time."""
