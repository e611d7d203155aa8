"""Devices, their types, and the links between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.files.json_body import without_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection. A message of n bytes takes `latency_seconds + n / bandwidth_bytes_per_second`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    latency_seconds: float
    bandwidth_bytes_per_second: float
    processor_seconds: float = 0.0
    """Seconds of work that each message costs the device at each end, besides its transfer. Positive if devices are
    processes that send and receive messages themselves."""
    processor_seconds_per_byte: float = 0.0
    """Seconds of the same work for each byte, because such a process copies its messages."""
    shared: bool = False
    """Whether a device has this bandwidth once in each direction for all its messages at this level, through a port of
    its own. If not, it has the bandwidth once for every other device."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A link that is not shared has the body that it had before there were ports.
        return without_empty(body_of(self), "shared")

    def work_seconds(self, count: float) -> float:
        """Return the seconds of work that a message of `count` bytes costs the device at each end."""
        return self.processor_seconds + count * self.processor_seconds_per_byte

    def seconds(self, count: float) -> float:
        """Return the seconds that `count` bytes take; 0 for 0 bytes."""
        return self.latency_seconds + count / self.bandwidth_bytes_per_second if count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLevel:
    """The link between nodes that are near each other, such as those of one rack or one site."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    link: Link
    nodes: tuple[tuple[str, ...], ...]
    """Groups of nodes. Two devices have this link if a group has the nodes of both, and no nearer level joins them."""


def slowest_seconds(links: Iterable[Link | None], count: float) -> float:
    """Return the seconds that `count` bytes take over the slowest of some links. None, inside a device, takes 0."""
    return max(link.seconds(count) if link else 0.0 for link in links)


HOST_BANDWIDTH = 12e9
"""Bytes per second that pinned copies reach over 16 lanes of PCIe 3 (nominal 15.8 GB/s)."""


OTHER_PEAKS = ("bf16_peak_flops_per_second", "fp16_peak_flops_per_second", "fp8_peak_flops_per_second")
"""The fields of a device type with its peaks in other precisions than fp32."""
AMOUNTS = (
    *("memory_bytes", "peak_flops_per_second", "memory_bytes_per_second", "host_bandwidth_bytes_per_second"),
    *OTHER_PEAKS,
)
"""The fields of a device type that are positive, if they are given."""
BESIDE_STAGES = ("context_bytes", "workspace_bytes", "communicator_bytes", "reserved_share")
"""The fields of a device type that say what its memory holds besides stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """Memory and speed of one kind of device."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    memory_bytes: float
    peak_flops_per_second: float
    """Of matrix products in fp32, as torch computes them by default: without TensorFloat-32."""
    memory_bytes_per_second: float
    launch_seconds: float
    """Fixed cost of one kernel."""
    half_peak_flops: float
    """Size in FLOPs of a kernel that reaches half of the peak. Larger kernels come closer to the peak."""
    host_bandwidth_bytes_per_second: float = HOST_BANDWIDTH
    """Between the device and the memory of its node, in each direction, while all devices of the node copy."""
    bf16_peak_flops_per_second: float | None = None
    """Of matrix products in bf16. None: the same as in fp32, because the device does not have units for them."""
    fp16_peak_flops_per_second: float | None = None
    """Of matrix products in fp16. None: the same as in fp32."""
    fp8_peak_flops_per_second: float | None = None
    """Of matrix products of 8-bit numbers. None: the same as in bf16, in which devices without such units compute."""

    context_bytes: float = 0.0
    """Bytes that a process holds before it allocates any: its context, and the kernels that it has loaded."""
    workspace_bytes: float = 0.0
    """Bytes that libraries hold for a stream that computes. All tasks of a device share one."""
    communicator_bytes: float = 0.0
    """Bytes of a communicator. A device has two for each device with which it exchanges messages, one for each sum of
    gradients, and one of all devices."""
    reserved_share: float = 0.0
    """Bytes that the allocator holds besides those in use, as a share of these."""

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A type without peaks of other precisions, or memory beside its stages, has the body that it had before.
        return without_empty(body_of(self), *OTHER_PEAKS, *BESIDE_STAGES)

    def peak(self, precision: str | None) -> float:
        """Return the FLOPs per second of matrix products at the peak.

        Args:
            precision: of the forwards: `fp32`, `bf16` or `fp16`; None is fp32. Products may also be in `fp8`.
        """
        bf16, fp16 = self.bf16_peak_flops_per_second, self.fp16_peak_flops_per_second
        given = {"bf16": bf16, "fp16": fp16, "fp8": self.fp8_peak_flops_per_second or bf16}
        return given.get(precision or "fp32") or self.peak_flops_per_second

    @property
    def is_processor(self) -> bool:
        """Whether it is a process on the cores of its node: its name is `cpu`, or begins so."""
        return self.name.lower().startswith("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one process on a CPU), on one node."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    type: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLink:
    """A link between two named devices, in both directions, that differs from the link of its level."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    first: str
    second: str
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of a node that its devices may use for what they offload."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    node: str
    bytes: float


class ClusterFields(TypedDict):
    """The fields of a cluster, as a preset or a file gives them."""

    name: str
    device_types: tuple[DeviceType, ...]
    devices: tuple[Device, ...]
    intra_node: Link
    inter_node: Link
    levels: NotRequired[tuple[LinkLevel, ...]]
    pair_links: NotRequired[tuple[PairLink, ...]]
    overlap: NotRequired[bool]
    duplex: NotRequired[bool]
    cores_per_node: NotRequired[int | None]
    host_memory: NotRequired[tuple[HostMemory, ...]]
