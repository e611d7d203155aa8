"""The cluster: devices, their memory and speed, and the links between them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import ConfigDict

from graphpipe.errors import InvalidInput
from graphpipe.files.json_document import fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection: a message of n bytes takes `latency_seconds + n / bandwidth_bytes_per_second`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    latency_seconds: float
    bandwidth_bytes_per_second: float
    processor_seconds: float = 0.0
    """What each message takes of the device at each of its two ends, beside its way: where devices are processes that
    send and receive themselves."""

    def seconds(self, count: float) -> float:
        """Return the seconds that `count` bytes take; nothing takes no time."""
        return self.latency_seconds + count / self.bandwidth_bytes_per_second if count else 0.0


def slowest_seconds(links: Iterable[Link | None], count: float) -> float:
    """Return the seconds that `count` bytes take over the slowest of some links; over None, inside a device, none."""
    return max(link.seconds(count) if link else 0.0 for link in links)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """What one kind of device can do."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    memory_bytes: float
    peak_flops_per_second: float
    memory_bytes_per_second: float
    launch_seconds: float
    """Fixed cost of one kernel."""
    half_peak_flops: float
    """Size of a kernel, in FLOPs, that reaches half of the peak: larger kernels come nearer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one process on a CPU), on one node."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    type: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLink:
    """A link between two named devices, both ways, that differs from its level's."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    first: str
    second: str
    link: Link


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and how they are connected: one level inside a node, one between nodes, and named exceptions.

    Raises:
        InvalidInput: no devices, duplicate names, an unknown device type, a memory, speed or bandwidth that is not
            positive and finite, or a negative latency.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    device_types: tuple[DeviceType, ...]
    devices: tuple[Device, ...]
    intra_node: Link
    inter_node: Link
    pair_links: tuple[PairLink, ...] = ()
    overlap: bool = True
    """True when transfers go on while the device computes; False when a device waits for them."""
    cores_per_node: int | None = None
    """Tasks a node runs at full speed at once (CPU processes share cores); None when every device has its own."""

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def types(self) -> dict[str, DeviceType]:
        """Device types by name."""
        return {kind.name: kind for kind in self.device_types}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this cluster."""
        return fingerprint(self)

    @cached_property
    def _pairs(self) -> dict[frozenset[int], Link]:
        index = {device.name: position for position, device in enumerate(self.devices)}
        return {frozenset((index[pair.first], index[pair.second])): pair.link for pair in self.pair_links}

    @property
    def messages_take_devices(self) -> bool:
        """Whether devices send and receive some of their messages themselves."""
        links = (self.intra_node, self.inter_node, *(pair.link for pair in self.pair_links))
        return any(link.processor_seconds for link in links)

    def link(self, first: int, second: int) -> Link | None:
        """Return the link between two devices (positions in `devices`); None inside one device."""
        if first == second:
            return None
        if self.pair_links and (exception := self._pairs.get(frozenset((first, second)))):
            return exception
        return self.intra_node if self.devices[first].node == self.devices[second].node else self.inter_node

    @cached_property
    def _links(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], frozenset[Link | None]]:
        return {}

    def links(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> frozenset[Link | None]:
        """Return the links between two groups of devices, each once; None stands for no link, inside one device."""
        key = sources, targets
        if (known := self._links.get(key)) is None:
            known = self._links[key] = frozenset(self.link(one, other) for one in sources for other in targets)
        return known

    @cached_property
    def _rings(self) -> dict[tuple[int, ...], Link | None]:
        return {}

    def slowest_link(self, devices: tuple[int, ...]) -> Link | None:
        """Return the slowest link in the ring over `devices`, in their order; None for one device."""
        if devices not in self._rings:
            self._rings[devices] = self._slowest_link(devices)
        return self._rings[devices]

    def _slowest_link(self, devices: tuple[int, ...]) -> Link | None:
        ring = [self.link(here, there) for here, there in zip(devices, devices[1:] + devices[:1], strict=True)]
        links = [link for link in ring if link is not None]
        return min(links, key=lambda link: (link.bandwidth_bytes_per_second, -link.latency_seconds), default=None)

    def without(self, names: Collection[str]) -> "Cluster":
        """Return the cluster that is left when these devices are gone.

        Raises:
            InvalidInput: no device is left.
        """
        return self.only([device.name for device in self.devices if device.name not in names])

    def only(self, names: Sequence[str]) -> "Cluster":
        """Return the cluster of these of its devices, in this order; itself if that changes nothing.

        Raises:
            InvalidInput: no names, or one that is none of its devices'.
        """
        if tuple(names) == tuple(device.name for device in self.devices):
            return self
        known = {device.name: device for device in self.devices}
        if unknown := [name for name in names if name not in known]:
            raise InvalidInput(f"no device is named '{unknown[0]}'", where=f"cluster '{self.name}'")
        return replace(
            self,
            name=f"{self.name} ({len(names)} of {len(known)} devices)",
            devices=tuple(known[name] for name in names),
            pair_links=tuple(pair for pair in self.pair_links if {pair.first, pair.second} <= set(names)),
        )

    @staticmethod
    def preset(spec: str) -> "Cluster":
        """Return the cluster of a preset such as `local:4`, `summit:8x4`, `dgx-a100:2x8` or `dgx-h100:4x8`.

        Raises:
            InvalidInput: an unknown preset (the nearest name is given) or a malformed size.
        """
        from graphpipe.cluster.presets import preset

        return preset(spec)

    @staticmethod
    def load(path: str | Path) -> "Cluster":
        """Read a cluster from a TOML file.

        Raises:
            InvalidInput: unreadable, not TOML, an unknown key, or a value out of range (the key is named).
        """
        from graphpipe.cluster.cluster_file import load

        return load(path)


def _check(cluster: Cluster) -> None:
    where = f"cluster '{cluster.name}'"
    if not cluster.devices:
        raise InvalidInput("the cluster has no devices", where=where)
    for kind, names in {
        "devices": [device.name for device in cluster.devices],
        "device types": [kind.name for kind in cluster.device_types],
    }.items():
        for name, count in Counter(names).items():
            if count > 1:
                raise InvalidInput(f"{count} {kind} are named '{name}'", where=where, remedy="Names must be unique.")
    for device in cluster.devices:
        if device.type not in {kind.name for kind in cluster.device_types}:
            raise InvalidInput(f"device '{device.name}' has unknown type '{device.type}'", where=where)
    for kind in cluster.device_types:
        for field in ("memory_bytes", "peak_flops_per_second", "memory_bytes_per_second"):
            _positive(getattr(kind, field), f"{where}, device type '{kind.name}', {field}")
        for field in ("launch_seconds", "half_peak_flops"):
            _not_negative(getattr(kind, field), f"{where}, device type '{kind.name}', {field}")
    if cluster.cores_per_node is not None:
        _positive(cluster.cores_per_node, f"{where}, cores_per_node")
    _check_links(cluster, where)


def _check_links(cluster: Cluster, where: str) -> None:
    names = {device.name for device in cluster.devices}
    links = {"intra_node": cluster.intra_node, "inter_node": cluster.inter_node}
    for pair in cluster.pair_links:
        for end in (pair.first, pair.second):
            if end not in names:
                raise InvalidInput(f"a pair link names unknown device '{end}'", where=where)
        if pair.first == pair.second:
            raise InvalidInput(f"a pair link joins '{pair.first}' to itself", where=where)
        links[f"pair link {pair.first} - {pair.second}"] = pair.link
    for name, link in links.items():
        _positive(link.bandwidth_bytes_per_second, f"{where}, {name}, bandwidth_bytes_per_second")
        _not_negative(link.latency_seconds, f"{where}, {name}, latency_seconds")
        _not_negative(link.processor_seconds, f"{where}, {name}, processor_seconds")


def _positive(amount: float, where: str) -> None:
    if not (math.isfinite(amount) and amount > 0):
        raise InvalidInput(f"is {amount}, must be positive and finite", where=where)


def _not_negative(amount: float, where: str) -> None:
    if not (math.isfinite(amount) and amount >= 0):
        raise InvalidInput(f"is {amount}, must be finite and not negative", where=where)
