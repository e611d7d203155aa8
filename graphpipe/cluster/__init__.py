"""Devices and links: the cluster, its presets and its TOML files."""

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import Device, DeviceType, HostMemory, Link, LinkLevel, PairLink

__all__ = ["Cluster", "Device", "DeviceType", "HostMemory", "Link", "LinkLevel", "PairLink"]
