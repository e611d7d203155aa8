"""The memory of this process and of its device."""

import resource
import sys

import psutil
import torch

from graphpipe.host_memory import available_host_bytes


def held_bytes(device: torch.device) -> float:
    """Return the bytes in use by this process: those allocated by torch on a GPU, else its resident memory."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated(device))
    return float(psutil.Process().memory_info().rss)


def peak_bytes(device: torch.device) -> float:
    """Return the step's peak on a GPU. On the CPU it is the process's peak so far, including torch itself (200 MiB)."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def available_bytes(device: torch.device) -> float:
    """Return the bytes that can still be allocated, including those that torch has reserved for this process.

    On the CPU this is shared by all processes of the machine.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return available_host_bytes()
