"""The cluster: devices, their memory and speed, and the links between them."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from graphpipe.cluster.cluster_file import file_fields
from graphpipe.cluster.default_fields import without_default_fields
from graphpipe.cluster.device import AMOUNTS, BESIDE_STAGES, Device, DeviceType, HostMemory, Link, LinkLevel, PairLink
from graphpipe.cluster.levels import BETWEEN, INSIDE, check_levels, device_groups, every_level, levels_of
from graphpipe.cluster.link_levels import LinkLevels
from graphpipe.cluster.presets import preset_fields
from graphpipe.errors import InvalidInput, check_not_negative
from graphpipe.files.json_body import digest, to_body, without_empty


# No slots: the derived look-ups below are cached properties.
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and how they are connected: by levels, of which a node is the nearest, and by named exceptions.

    Raises:
        InvalidInput: a cluster without devices, duplicate names, an unknown device type, a memory, speed or bandwidth
            that is not positive and finite, a negative latency, or levels that do not lie in each other.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    device_types: tuple[DeviceType, ...]
    devices: tuple[Device, ...]
    intra_node: Link
    """The nearest level: the link between the devices of a node."""
    inter_node: Link
    """The farthest level: the link between nodes that no other level joins."""
    pair_links: tuple[PairLink, ...] = ()
    overlap: bool = True
    """True if transfers run while the device computes. False if a device waits for them."""
    duplex: bool = False
    """If devices wait for transfers: whether two devices that send to each other do so at the same time."""
    cores_per_node: int | None = None
    """Tasks that a node runs at full speed at once, if CPU processes share cores. None: each device has its own."""
    host_memory: tuple[HostMemory, ...] = ()
    """Of the nodes for which it is known (see `host_memory_bytes`)."""
    levels: tuple[LinkLevel, ...] = ()
    """Levels between `intra_node` and `inter_node`, such as racks and sites, the nearest first."""

    def __post_init__(self) -> None:
        _check(self)

    @model_serializer(mode="wrap")
    def _body(self, body_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A cluster of two levels has the body that it had before there were others.
        return without_empty(body_of(self), "levels")

    @cached_property
    def types(self) -> dict[str, DeviceType]:
        """Device types by name."""
        return {kind.name: kind for kind in self.device_types}

    def type_of(self, device: int) -> DeviceType:
        """Return the type of a device (a position in `devices`)."""
        return self.types[self.devices[device].type]

    @cached_property
    def smallest_memory_bytes(self) -> float:
        """The memory of the smallest device."""
        return min(self.types[device.type].memory_bytes for device in self.devices)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON of this cluster, without fields of later versions that have their default."""
        return digest(without_default_fields(to_body(self)))

    def host_memory_bytes(self, node: str) -> float:
        """Return the bytes of a node's memory that its devices may use for what they offload.

        If the cluster does not say, they are twice the memory of the node's devices, and less than any server with GPUs
        has. The memory of CPU processes is the node's own, so they have nothing beside it.
        """
        for known in self.host_memory:
            if known.node == node:
                return known.bytes
        if self.cores_per_node is not None:
            return 0.0
        return 2 * sum(self.types[device.type].memory_bytes for device in self.devices if device.node == node)

    @property
    def copies_take_devices(self) -> bool:
        """Whether a device waits while bytes are copied between it and its node, as a CPU process does."""
        return not self.overlap or self.cores_per_node is not None or self.messages_take_devices

    @cached_property
    def _pairs(self) -> dict[frozenset[int], Link]:
        index = {device.name: position for position, device in enumerate(self.devices)}
        return {frozenset((index[pair.first], index[pair.second])): pair.link for pair in self.pair_links}

    @property
    def messages_take_devices(self) -> bool:
        """Whether devices send and receive some of their messages themselves."""
        links = (*(level.link for level in self.every_level), *(pair.link for pair in self.pair_links))
        return any(link.processor_seconds or link.processor_seconds_per_byte for link in links)

    @property
    def on_processors(self) -> bool:
        """Whether all devices are processes on the cores of their nodes."""
        used = {device.type for device in self.devices}
        return all(each.is_processor for each in self.device_types if each.name in used)

    def link(self, first: int, second: int) -> Link | None:
        """Return the link between two devices (positions in `devices`); None inside one device."""
        if first == second:
            return None
        if self.pair_links and (exception := self._pairs.get(frozenset((first, second)))):
            return exception
        return self.level(first, second).link

    @cached_property
    def every_level(self) -> tuple[LinkLevel, ...]:
        """All levels, the nearest first: `intra_node`, those of `levels`, and `inter_node`."""
        return every_level(self._nodes, self.intra_node, self.levels, self.inter_node)

    @cached_property
    def _nodes(self) -> list[str]:
        return [device.node for device in self.devices]

    @cached_property
    def _groups(self) -> list[tuple[LinkLevel, tuple[int, ...]]]:
        return [(level, device_groups(self._nodes, level)) for level in self.every_level]

    def level(self, first: int, second: int) -> LinkLevel:
        """Return the nearest level that joins two devices (positions in `devices`)."""
        ends = self._nodes[first], self._nodes[second]
        if (known := self._level_of_nodes.get(ends)) is None:
            known = next(level for level, groups in self._groups if groups[first] == groups[second])
            self._level_of_nodes[ends] = known
        return known

    @cached_property
    def _level_of_nodes(self) -> dict[tuple[str, str], LinkLevel]:
        return {}

    @property
    def cores(self) -> dict[str, float]:
        """The cores of each node, if its devices share them."""
        return {} if self.cores_per_node is None else dict.fromkeys(self._nodes, float(self.cores_per_node))

    @cached_property
    def shares_ports(self) -> bool:
        """Whether all messages of a device share its bandwidth, at a level that joins several devices."""
        near, *farther = (level for level in self.every_level if level.link.shared or level.name == INSIDE)
        shared = near.link.shared and len(set(self._nodes)) < len(self._nodes)
        return shared or any(len(nodes) > 1 for level in farther for nodes in level.nodes)

    def port(self, first: int, second: int) -> str:
        """Return the level at which messages between two devices share the ports of both; empty if they do not share
        them."""
        link = self.link(first, second)
        return self.level(first, second).name if link is not None and link.shared else ""

    def with_level_links(self, links: Mapping[str, Link]) -> "Cluster":
        """Return the cluster with other links of some levels, given by the names of the levels."""
        return replace(
            self,
            intra_node=links.get(INSIDE, self.intra_node),
            inter_node=links.get(BETWEEN, self.inter_node),
            levels=tuple(replace(level, link=links.get(level.name, level.link)) for level in self.levels),
        )

    def with_every_link(self, change: Callable[[Link], Link]) -> "Cluster":
        """Return the cluster with all of its links changed: those of levels and those of pairs."""
        pairs = tuple(replace(pair, link=change(pair.link)) for pair in self.pair_links)
        changed = self.with_level_links({level.name: change(level.link) for level in self.every_level})
        return replace(changed, pair_links=pairs)

    @cached_property
    def link_levels(self) -> LinkLevels:
        """The devices in groups of near ones, whether the links are given by node, by level or pair by pair."""
        if len(self.devices) == 1 or not (self.pair_links or self.levels):
            return LinkLevels.of_nodes(self._nodes, self.intra_node, self.inter_node)
        return LinkLevels.of_pairs(len(self.devices), self._link_between)

    def _link_between(self, first: int, second: int) -> Link:
        link = self.link(first, second)
        assert link is not None
        return link

    def seconds_per_byte(self, first: int, second: int) -> float:
        """Return the seconds of one byte on the link between two devices, without latency; 0 inside one device."""
        link = self.link(first, second)
        return 0.0 if link is None else 1.0 / link.bandwidth_bytes_per_second

    @cached_property
    def _links(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], frozenset[Link | None]]:
        return {}

    def links(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> frozenset[Link | None]:
        """Return the links between two groups of devices, each once. None is for a pair inside one device."""
        key = sources, targets
        if (known := self._links.get(key)) is None:
            known = self._links[key] = frozenset(self.link(one, other) for one in sources for other in targets)
        return known

    @cached_property
    def _rings(self) -> dict[tuple[int, ...], tuple[int, int]]:
        return {}

    def slowest_link(self, devices: tuple[int, ...]) -> Link | None:
        """Return the slowest link in the ring over `devices`, in their order; None for one device."""
        return self.link(*self._slowest_pair(devices))

    def _slowest_pair(self, devices: tuple[int, ...]) -> tuple[int, int]:
        def speed(pair: tuple[int, int]) -> tuple[float, float]:
            link = self._link_between(*pair)
            return link.bandwidth_bytes_per_second, -link.latency_seconds

        if devices not in self._rings:
            ring = [pair for pair in zip(devices, devices[1:] + devices[:1], strict=True) if pair[0] != pair[1]]
            self._rings[devices] = min(ring, key=speed, default=(devices[0], devices[0]))
        return self._rings[devices]

    def ring_port(self, devices: tuple[int, ...]) -> str:
        """Return the level at which a collective over `devices` takes the ports of all of them: that of the slowest
        link in the ring; empty if this link is not shared."""
        return self.port(*self._slowest_pair(devices))

    def without(self, names: Collection[str]) -> "Cluster":
        """Return the cluster without these devices.

        Raises:
            InvalidInput: no device is left.
        """
        return self.only([device.name for device in self.devices if device.name not in names])

    def only(self, names: Sequence[str]) -> "Cluster":
        """Return the cluster with only these devices, in this order. Returns itself if it already has exactly these.

        Raises:
            InvalidInput: empty `names`, or a name that is not one of its devices.
        """
        if tuple(names) == tuple(device.name for device in self.devices):
            return self
        known = {device.name: device for device in self.devices}
        if unknown := [name for name in names if name not in known]:
            raise InvalidInput(f"no device is named '{unknown[0]}'", where=f"cluster '{self.name}'")
        nodes = {known[name].node for name in names}
        return replace(
            self,
            name=f"{self.name} ({len(names)} of {len(known)} devices)",
            devices=tuple(known[name] for name in names),
            pair_links=tuple(pair for pair in self.pair_links if {pair.first, pair.second} <= set(names)),
            host_memory=tuple(each for each in self.host_memory if each.node in nodes),
            levels=levels_of(self.levels, nodes),
        )

    @staticmethod
    def preset(spec: str) -> "Cluster":
        """Return the cluster of a preset such as `local:4`, `summit:8x4`, `dgx-a100:2x8` or `dgx-h100:4x8`.

        Raises:
            InvalidInput: an unknown preset (the nearest name is given) or a malformed size.
        """
        return Cluster(**preset_fields(spec))

    @staticmethod
    def load(path: str | Path) -> "Cluster":
        """Read a cluster from a TOML file.

        Raises:
            InvalidInput: unreadable, not TOML, an unknown key, or a value out of range (the key is named).
        """
        try:
            return Cluster(**file_fields(path))
        except InvalidInput as error:
            where = error.where if error.where.startswith(str(path)) else f"{path}, {error.where}"
            raise InvalidInput(error.what, where=where, remedy=error.remedy) from None

    @staticmethod
    def resolve(text: str) -> "Cluster":
        """Return the cluster of a TOML file if `text` ends in `.toml`, otherwise of a preset.

        Raises:
            InvalidInput: as `load` and `preset` do.
        """
        return Cluster.load(text) if text.endswith(".toml") else Cluster.preset(text)


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
        for field in AMOUNTS:
            if (amount := getattr(kind, field)) is not None:
                _positive(amount, f"{where}, device type '{kind.name}', {field}")
        for field in ("launch_seconds", "half_peak_flops", *BESIDE_STAGES):
            check_not_negative(getattr(kind, field), f"{where}, device type '{kind.name}', {field}")
    if cluster.cores_per_node is not None:
        _positive(cluster.cores_per_node, f"{where}, cores_per_node")
    nodes = {device.node for device in cluster.devices}
    for node, count in Counter(each.node for each in cluster.host_memory).items():
        if node not in nodes:
            raise InvalidInput(f"host_memory names unknown node '{node}'", where=where)
        if count > 1:
            raise InvalidInput(f"host_memory names node '{node}' {count} times", where=where)
    for each in cluster.host_memory:
        check_not_negative(each.bytes, f"{where}, host_memory of node '{each.node}'")
    check_levels(cluster.levels, nodes, where)
    _check_links(cluster, where)


def _check_links(cluster: Cluster, where: str) -> None:
    names = {device.name for device in cluster.devices}
    links = {level.name: level.link for level in cluster.every_level}
    for pair in cluster.pair_links:
        for end in (pair.first, pair.second):
            if end not in names:
                raise InvalidInput(f"a pair link names unknown device '{end}'", where=where)
        if pair.first == pair.second:
            raise InvalidInput(f"a pair link joins '{pair.first}' to itself", where=where)
        if pair.link.shared:
            remedy = "Let the link of a level be shared, or leave it out."
            raise InvalidInput("a link between two devices cannot be shared", where=where, remedy=remedy)
        links[f"pair link {pair.first} - {pair.second}"] = pair.link
    for name, link in links.items():
        _positive(link.bandwidth_bytes_per_second, f"{where}, {name}, bandwidth_bytes_per_second")
        check_not_negative(link.latency_seconds, f"{where}, {name}, latency_seconds")
        check_not_negative(link.processor_seconds, f"{where}, {name}, processor_seconds")
        check_not_negative(link.processor_seconds_per_byte, f"{where}, {name}, processor_seconds_per_byte")


def _positive(amount: float, where: str) -> None:
    if not (math.isfinite(amount) and amount > 0):
        raise InvalidInput(f"is {amount}, must be positive and finite", where=where)
