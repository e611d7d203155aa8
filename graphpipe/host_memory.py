"""The free memory of this machine, or of the container that this process runs in, and what a process gives back."""

import ctypes
import sys
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_host_bytes() -> float:
    """Return the bytes that all processes of this machine or container together may still allocate."""
    return float(min(psutil.virtual_memory().available, _container_bytes(CGROUP)))


def return_freed_memory() -> None:
    """Give memory that this process has freed back to the system, where its allocator would keep it.

    After millions of small and large objects, glibc keeps tens of MiB between those that are still there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # other allocators have none
        trim(0)


def _container_bytes(folder: Path) -> float:
    # The unused part of a container's limit (cgroup v2). Cached file pages can be dropped, so they count as unused.
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = float((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else float(limit) - used + float(counts.get("inactive_file", 0))
