"""Memory of this process and of the place it computes in."""

import resource
import sys

import psutil
import torch

from graphpipe.host_memory import available_host_bytes


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

    On the CPU this is shared by all processes of the machine.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return available_host_bytes()
