"""A queue of operations: what a GPU does in order, behind the host's back; on a CPU all is done when it is called."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from torch import Tensor

Mark = object
"""A moment in a queue: all that was put into it before."""


class Lane(ABC):
    """A queue of operations on one device. Those of different lanes run side by side, unless one waits for another."""

    @abstractmethod
    def entered(self) -> AbstractContextManager[object]:
        """Return what to be inside of for operations to be put into this lane."""

    @abstractmethod
    def mark(self) -> Mark:
        """Return the moment when all that is in this lane so far is done."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Let what is put in from now on wait for a moment of another lane."""

    @abstractmethod
    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Keep memory of another lane from being used anew before what is in this lane so far is done with it.

        Torch gives freed memory out again in the lane that it was allocated in, at once, and knows of no other's use.
        """


@final
class Immediate(Lane):
    """Operations are done when they are called, and there is nothing to wait for."""

    _nothing = nullcontext()

    def entered(self) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return self._nothing

    def mark(self) -> Mark:
        """Return a moment that has passed."""
        return None

    def wait(self, mark: Mark) -> None:
        """Do nothing."""

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Do nothing."""


@final
class Stream(Lane):
    """A CUDA stream; its marks are CUDA events.

    Args:
        stream: of torch's.
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
        assert isinstance(mark, torch.cuda.Event), "a mark of another kind of lane"
        self._stream.wait_event(mark)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Tell torch's allocator that this stream uses the tensors."""
        for tensor in tensors:
            tensor.record_stream(self._stream)


_IMMEDIATE = Immediate()


def new_lane(device: torch.device) -> Lane:
    """Return a lane of its own on a GPU; on a CPU there is one for all."""
    return Stream(torch.cuda.Stream(device)) if device.type == "cuda" else _IMMEDIATE


def current_lane(device: torch.device) -> Lane:
    """Return the lane in which operations are put that are called now."""
    return Stream(torch.cuda.current_stream(device)) if device.type == "cuda" else _IMMEDIATE
