"""Checks that the installed torch and the GPUs can do what the runtime needs."""

import re

import torch
import torch.distributed as dist
from torch.cuda import nccl

from graphpipe.doctor import Finding
from graphpipe.units import format_bytes

OLDEST = (2, 11)


def check_torch() -> list[Finding]:
    """Check the version of torch, its communication backends, and every GPU."""
    return [check_version(torch.__version__), *_backends(), *_gpus()]


def check_version(version: str) -> Finding:
    """Check the version of torch."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        remedy = f"pip install 'torch>={oldest}'."
        return Finding(name="torch", status="problem", what=f"{version}, needs {oldest}", remedy=remedy)
    return Finding(name="torch", status="fine", what=version)


def _backends() -> list[Finding]:
    found: list[Finding] = []
    gloo = dist.is_available() and dist.is_gloo_available()
    if gloo:
        found.append(Finding(name="gloo", status="fine", what="available"))
    else:
        remedy = "Ranks on CPUs cannot communicate: install a torch that was built with distributed support."
        found.append(Finding(name="gloo", status="problem", what="torch was built without it", remedy=remedy))
    if torch.cuda.is_available():
        if dist.is_available() and dist.is_nccl_available():
            version = ".".join(map(str, nccl.version()))
            found.append(Finding(name="nccl", status="fine", what=version))
        else:
            remedy = "Ranks on GPUs cannot communicate: install a CUDA build of torch for Linux."
            found.append(Finding(name="nccl", status="problem", what="torch was built without it", remedy=remedy))
    return found


def _gpus() -> list[Finding]:
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            return [Finding(name="GPUs", status="fine", what="none: this torch is for CPUs")]
        what = f"none can be used, although torch is built for CUDA {torch.version.cuda}"
        remedy = "If there are GPUs, look at nvidia-smi, the driver's version and CUDA_VISIBLE_DEVICES."
        return [Finding(name="GPUs", status="warning", what=what, remedy=remedy)]
    return [_gpu(number) for number in range(torch.cuda.device_count())]


def _gpu(number: int) -> Finding:
    name, device = torch.cuda.get_device_name(number), torch.device("cuda", number)
    try:
        ones = torch.ones(256, 256, device=device)
        total = float((ones @ ones).sum())
        free, memory = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "")
        remedy = "Look at nvidia-smi: another program may hold it, or this torch is not built for it."
        return Finding(name=f"GPU {number}", status="problem", what=f"{name} does not compute: {first}", remedy=remedy)
    if total != 256.0**3:
        remedy = "Do not train on it: replace it, or leave it out with CUDA_VISIBLE_DEVICES."
        return Finding(name=f"GPU {number}", status="problem", what=f"{name} computes wrong sums", remedy=remedy)
    what = f"{name}, {format_bytes(free)} of {format_bytes(memory)} free"
    if free < 0.5 * memory:
        remedy = "Another program holds the rest: plans count on all of it."
        return Finding(name=f"GPU {number}", status="warning", what=what, remedy=remedy)
    return Finding(name=f"GPU {number}", status="fine", what=what)
