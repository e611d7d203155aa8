"""Checks that the installed torch and the GPUs can do what the runtime needs."""

import torch

from graphpipe.devices.device_kind import DeviceKind
from graphpipe.devices.registry import all_device_kinds
from graphpipe.doctor import Finding
from graphpipe.units import format_bytes
from graphpipe.versions import OLDEST_TORCH, torch_is_too_old


def check_torch() -> list[Finding]:
    """Check the version of torch, its communication backends, and every accelerator."""
    return [check_version(torch.__version__), *_backends(), *_accelerators()]


def check_version(version: str) -> Finding:
    """Check the version of torch."""
    if torch_is_too_old(version):
        oldest = ".".join(map(str, OLDEST_TORCH))
        remedy = f"pip install 'torch>={oldest}'."
        return Finding(name="torch", status="problem", what=f"{version}, needs {oldest}", remedy=remedy)
    return Finding(name="torch", status="fine", what=version)


def _backends() -> list[Finding]:
    findings: list[Finding] = []
    for kind in all_device_kinds().values():
        if not kind.count():
            continue
        if kind.backend_available():
            version = kind.versions(used=True).get(kind.backend, "available")
            findings.append(Finding(name=kind.backend, status="fine", what=version))
        else:
            remedy = f"Ranks on {kind.name} devices cannot communicate: install a torch that was built with it."
            what = "torch was built without it"
            findings.append(Finding(name=kind.backend, status="problem", what=what, remedy=remedy))
    return findings


def _accelerators() -> list[Finding]:
    kinds = [kind for kind in all_device_kinds().values() if not kind.on_host]
    if usable := [kind for kind in kinds if kind.count()]:
        return [_accelerator(kind, number) for kind in usable for number in range(kind.count())]
    built_for = [kind for kind in kinds if kind.built_for()]
    if not built_for:
        return [Finding(name="GPUs", status="fine", what="none: this torch is for CPUs")]
    names = " and ".join(kind.built_for() for kind in built_for)
    what = f"none can be used, although torch is built for {names}"
    remedy = f"If there are GPUs, look at {built_for[0].where_to_look}."
    return [Finding(name="GPUs", status="warning", what=what, remedy=remedy)]


def _accelerator(kind: DeviceKind, number: int) -> Finding:
    device = torch.device(kind.name, number)
    model, name = kind.describe(device), f"GPU {number}"
    try:
        ones = torch.ones(256, 256, device=device)
        total = float((ones @ ones).sum())
        free, memory = kind.available_bytes(device), kind.total_bytes(device)
    except (RuntimeError, AssertionError) as error:  # The latter if torch was not built for it.
        first = next(iter(str(error).splitlines()), "")
        remedy = f"Look at {kind.where_to_look}: another program may hold it, or this torch is not built for it."
        return Finding(name=name, status="problem", what=f"{model} does not compute: {first}", remedy=remedy)
    if total != 256.0**3:
        remedy = f"Do not train on it: replace it, or leave it out with {kind.visible_variable}."
        return Finding(name=name, status="problem", what=f"{model} computes wrong sums", remedy=remedy)
    what = f"{model}, {format_bytes(free)} of {format_bytes(memory)} free"
    if free < 0.5 * memory:
        remedy = "Another program holds the rest: plans count on all of it."
        return Finding(name=name, status="warning", what=what, remedy=remedy)
    return Finding(name=name, status="fine", what=what)
