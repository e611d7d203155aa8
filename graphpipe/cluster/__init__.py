"""Devices and links: the cluster, its presets and its TOML files."""

from graphpipe.cluster.cluster import Cluster, Device, DeviceType, Link, PairLink

__all__ = ["Cluster", "Device", "DeviceType", "Link", "PairLink"]
