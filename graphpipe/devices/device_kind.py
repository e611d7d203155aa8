"""What the runtime needs of a kind of device: streams, clocks, memory, random numbers and messages.

torch.accelerator offers a part of this, for the one accelerator that torch was built for. It knows neither the CPU, nor
the backend that carries messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from graphpipe.graph import Precision

Mark = object
"""A point in a stream, after all operations queued so far."""

Moment = object
"""A moment of a clock; its seconds are known after `settle`."""


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


class DeviceClock(ABC):
    """Records moments without blocking. On a GPU, the time of an operation is known only after it has run."""

    @abstractmethod
    def now(self) -> Moment:
        """Record this moment; on a GPU, the moment when all operations queued on the current stream are done."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all recorded moments have passed."""

    @abstractmethod
    def seconds(self, start: Moment, end: Moment) -> float:
        """Return the seconds between two moments, after `settle`."""


class DeviceKind(ABC):
    """One kind of device. Its methods take a `torch.device` of this kind."""

    name: str
    """Torch's name of the type, as in `torch.device(name)`."""
    backend: str
    """The backend of torch.distributed that carries messages between such devices."""
    matches_by_order: bool
    """Whether this backend has no tags: it matches messages only by their order on both ranks."""
    on_host: bool
    """Whether it computes on the cores of the host, in the memory that all processes of the host share."""
    precisions: tuple[Precision, ...]
    """The precisions of forwards, by autocast, that it can compute."""
    activities: tuple[ProfilerActivity, ...]
    """What torch's profiler records of it."""
    closing_waits: bool
    """Whether closing a group of this backend waits for its pending messages, so that an error must abort them."""
    outlives_peers: bool
    """Whether a process can form new groups after a peer of an old one was lost."""
    host_rounding: float = 1.0
    """At most how many times its bytes a host buffer takes."""
    where_to_look: str = ""
    """What shows the state of such devices, as the end of a remedy."""
    visible_variable: str | None = None
    """The environment variable that says which devices of the machine a process sees; None if there is none."""

    @abstractmethod
    def count(self) -> int:
        """Return how many of them this process can use."""

    @abstractmethod
    def built_for(self) -> str:
        """Return what this torch was built for, such as `CUDA 12.8`; empty if it knows no such device."""

    @abstractmethod
    def select(self, device: torch.device) -> None:
        """Make it the current device of this thread."""

    @abstractmethod
    def synchronize(self, device: torch.device | None = None) -> None:
        """Wait until it has run all queued operations. None is the current device."""

    @abstractmethod
    def describe(self, device: torch.device) -> str:
        """Return the model of the device, such as the name of a GPU."""

    @abstractmethod
    def backend_available(self) -> bool:
        """Return whether this torch has the backend of its messages."""

    def message_options(self) -> object:
        """Return what `torch.distributed.new_group` takes as `pg_options` for groups of messages; None for nothing."""
        return None

    @abstractmethod
    def versions(self, *, used: bool) -> Mapping[str, str]:
        """Return the versions of its libraries, which ranks must share.

        Args:
            used: whether this rank computes on such a device. Otherwise only those that are asked for without one.
        """

    @abstractmethod
    def new_stream(self, device: torch.device) -> Stream:
        """Return a new stream."""

    @abstractmethod
    def current_stream(self, device: torch.device) -> Stream:
        """Return the stream on which operations are queued now."""

    @abstractmethod
    def clock(self, device: torch.device) -> DeviceClock:
        """Return the clock of its operations."""

    @abstractmethod
    def held_bytes(self, device: torch.device) -> float:
        """Return the bytes that this process uses now."""

    @abstractmethod
    def peak_bytes(self, device: torch.device) -> float:
        """Return the most bytes that this process has used since `reset_peak`, or since it began."""

    @abstractmethod
    def reset_peak(self, device: torch.device) -> None:
        """Begin a new peak, where that is possible."""

    @abstractmethod
    def available_bytes(self, device: torch.device) -> float:
        """Return the bytes that can still be allocated, including those that torch has reserved for this process."""

    @abstractmethod
    def total_bytes(self, device: torch.device) -> float:
        """Return the bytes of its memory."""

    @abstractmethod
    def frequency(self, device: torch.device) -> float | None:
        """Return the hertz at which it computes now; None if that is not known."""

    @abstractmethod
    def host_buffer(self, count: int) -> Tensor:
        """Return bytes in the memory of the host, to and from which copies of it need not wait.

        Raises:
            RuntimeError: the host lacks the memory.
        """

    @abstractmethod
    def seed(self, number: int) -> None:
        """Seed its generator of random numbers, if it is not that of the CPU."""

    @abstractmethod
    def random_state(self, device: torch.device) -> Tensor | None:
        """Return the state of its generator of random numbers; None if that is the CPU's."""

    @abstractmethod
    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        """Set the state of its generator, which `random_state` returned."""
