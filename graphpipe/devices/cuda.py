"""GPUs that torch calls CUDA: NVIDIA's, and AMD's in a torch that was built for ROCm."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda import nccl
from torch.profiler import ProfilerActivity

from graphpipe.devices.device_kind import DeviceClock, DeviceKind, Mark, Moment, Stream
from graphpipe.graph import PRECISIONS


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


@final
class Cuda(DeviceKind):
    """CUDA devices. NCCL carries their messages."""

    name = "cuda"
    backend = "nccl"
    matches_by_order = True
    on_host = False
    closing_waits = True
    outlives_peers = False
    host_rounding = 2.0  # torch rounds pinned blocks up to powers of two
    where_to_look = "nvidia-smi, the driver's version and CUDA_VISIBLE_DEVICES"
    precisions = PRECISIONS
    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
    visible_variable = "CUDA_VISIBLE_DEVICES"

    def count(self) -> int:
        """Return the number of visible GPUs, 0 if none can be used."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def built_for(self) -> str:
        """Return the version of CUDA."""
        return "" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"

    def select(self, device: torch.device) -> None:
        """Make it CUDA's current device of this thread."""
        torch.cuda.set_device(device)

    def synchronize(self, device: torch.device | None = None) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(device)

    def describe(self, device: torch.device) -> str:
        """Return the name of the GPU."""
        return torch.cuda.get_device_name(device)

    def backend_available(self) -> bool:
        """Return whether this torch was built with NCCL."""
        return dist.is_available() and dist.is_nccl_available()

    def message_options(self) -> object:
        """Return options of NCCL whose kernels start before those that compute, so that messages leave in time."""
        return dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)

    def versions(self, *, used: bool) -> Mapping[str, str]:
        """Return the versions of CUDA and NCCL."""
        version = ".".join(map(str, nccl.version())) if used else "none"
        return {"cuda": str(torch.version.cuda), "nccl": version}

    def new_stream(self, device: torch.device) -> Stream:
        """Return a new CUDA stream."""
        return CudaStream(torch.cuda.Stream(device))

    def current_stream(self, device: torch.device) -> Stream:
        """Return CUDA's current stream."""
        return CudaStream(torch.cuda.current_stream(device))

    def clock(self, device: torch.device) -> DeviceClock:
        """Return a clock of CUDA events."""
        return CudaClock(device)

    def held_bytes(self, device: torch.device) -> float:
        """Return the bytes of blocks in use."""
        return _active_bytes(device, "current")

    def peak_bytes(self, device: torch.device) -> float:
        """Return the most bytes of blocks in use."""
        return _active_bytes(device, "peak")

    def reset_peak(self, device: torch.device) -> None:
        """Let torch begin a new peak."""
        torch.cuda.reset_peak_memory_stats(device)

    def available_bytes(self, device: torch.device) -> float:
        """Return the free memory of the device, and what torch has reserved without using it."""
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))

    def total_bytes(self, device: torch.device) -> float:
        """Return the memory of the GPU."""
        return float(torch.cuda.mem_get_info(device)[1])

    def frequency(self, device: torch.device) -> float | None:
        """Return the frequency of its multiprocessors, if NVIDIA's management library is there to say it."""
        try:
            return torch.cuda.clock_rate(device) * 1e6
        except (ImportError, RuntimeError):
            return None

    def host_buffer(self, count: int) -> Tensor:
        """Return pinned memory."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def seed(self, number: int) -> None:
        """Seed the current device's generator."""
        torch.cuda.manual_seed(number)

    def random_state(self, device: torch.device) -> Tensor | None:
        """Return the state of the device's generator."""
        return torch.cuda.get_rng_state(device)

    def set_random_state(self, device: torch.device, state: Tensor) -> None:
        """Set the state of the device's generator."""
        torch.cuda.set_rng_state(state, device)


CUDA = Cuda()


def _active_bytes(device: torch.device, figure: str) -> float:
    # Unlike `memory_allocated`, with blocks that the host has freed and another stream still uses.
    return float(torch.cuda.memory_stats(device).get(f"active_bytes.all.{figure}", 0))
