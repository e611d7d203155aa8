"""Streams: queues of operations that a GPU runs in order. On a CPU, operations run when they are called."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from torch import Tensor

Mark = object
"""A point in a stream, after all operations queued so far."""


class Stream(ABC):
    """A queue of operations on one device. Different streams run side by side, unless one waits for another."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which operations are queued on this stream."""

    @abstractmethod
    def mark(self) -> Mark:
        """Return the point after all operations queued so far."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Let all later operations wait for a point of another stream."""

    @abstractmethod
    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Keep memory of another stream from being reused before the operations queued here are done with it.

        Torch reuses freed memory at once on the stream that allocated it, without regard to other streams.
        """


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
class CudaStream(Stream):
    """A CUDA stream; its marks are CUDA events.

    Args:
        stream: torch's stream.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which this is the current stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """Return an event recorded here."""
        return self._stream.record_event()

    def wait(self, mark: Mark) -> None:
        """Wait for an event."""
        assert isinstance(mark, torch.cuda.Event), "a mark of another kind of stream"
        self._stream.wait_event(mark)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Tell torch's allocator that this stream uses the tensors."""
        for tensor in tensors:
            tensor.record_stream(self._stream)


_HOST_STREAM = HostStream()


def new_stream(device: torch.device) -> Stream:
    """Return a new stream on a GPU, or the only stream on a CPU."""
    return CudaStream(torch.cuda.Stream(device)) if device.type == "cuda" else _HOST_STREAM


def current_stream(device: torch.device) -> Stream:
    """Return the stream on which operations are queued now."""
    return CudaStream(torch.cuda.current_stream(device)) if device.type == "cuda" else _HOST_STREAM
