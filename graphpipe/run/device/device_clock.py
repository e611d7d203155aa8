"""When something happens: on a CPU when it is called, on a GPU when its lane comes to it, which is known later."""

import time
from abc import ABC, abstractmethod
from typing import final

import torch

Moment = object
"""What a clock notes; its seconds are known once the clock has settled."""


class Clock(ABC):
    """Notes moments without keeping anything waiting."""

    @abstractmethod
    def now(self) -> Moment:
        """Note this moment: on a GPU, when all is done that was put into the current lane before."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all moments have come."""

    @abstractmethod
    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the seconds between two moments, after `settle`."""


@final
class HostClock(Clock):
    """The processor's."""

    def now(self) -> Moment:
        """Return seconds since some moment."""
        return time.perf_counter()

    def settle(self) -> None:
        """Do nothing."""

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the difference."""
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start


@final
class CudaClock(Clock):
    """CUDA events on the current stream.

    Args:
        device: whose.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> Moment:
        """Return an event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait until the device has done all it was given."""
        torch.cuda.synchronize(self._device)

    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the time between two events, which CUDA gives in milliseconds, to half a microsecond."""
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1e3


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
