"""Clocks for a CPU and for a GPU, where the time of an operation is known only after it has run."""

import time
from abc import ABC, abstractmethod
from typing import final

import torch

Moment = object
"""A moment of a clock; its seconds are known after `settle`."""


class DeviceClock(ABC):
    """Records moments without blocking."""

    @abstractmethod
    def now(self) -> Moment:
        """Record this moment; on a GPU, the moment when all operations queued on the current stream are done."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all recorded moments have passed."""

    @abstractmethod
    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the seconds between two moments, after `settle`."""


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


@final
class CudaClock(DeviceClock):
    """CUDA events on the current stream.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Moment:
        """Return an event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait until the device has run all queued operations."""
        torch.cuda.synchronize(self._device)

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the seconds between two events; CUDA's resolution is half a microsecond."""
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1e3


def clock_of(device: torch.device) -> DeviceClock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
