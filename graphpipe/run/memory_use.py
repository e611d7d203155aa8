"""Memory of this process and of the place it computes in."""

import resource
import sys
from pathlib import Path

import psutil
import torch

_CGROUP = Path("/sys/fs/cgroup")


def held_bytes(device: torch.device) -> float:
    """Return what this process holds now: on a GPU what torch has allocated there, else its resident memory."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated(device))
    return float(psutil.Process().memory_info().rss)


def peak_bytes(device: torch.device) -> float:
    """Return the step's peak on a GPU; on the CPU the process's peak so far, torch itself (200 MiB) included."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def available_bytes(device: torch.device) -> float:
    """Return what may still be allocated, what torch keeps in reserve for this process included.

    On the CPU this is shared by all processes of the machine (or of its container).
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return float(min(psutil.virtual_memory().available, _container_bytes(_CGROUP)))


def _container_bytes(folder: Path) -> float:
    # What a container (cgroup v2) leaves of its limit; file pages can be dropped, and do not count.
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = float((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if limit == "max" else float(limit) - used + float(counts.get("inactive_file", 0))
