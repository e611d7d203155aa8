"""Memory of this machine, or of the container it is."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_host_bytes() -> float:
    """Return what may still be allocated by all processes of this machine, or of this container, together."""
    return float(min(psutil.virtual_memory().available, _container_bytes(CGROUP)))


def _container_bytes(folder: Path) -> float:
    # What a container (cgroup v2) leaves of its limit; file pages can be dropped, and do not count.
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = float((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else float(limit) - used + float(counts.get("inactive_file", 0))
