"""Errors of NCCL and gloo that come of how a machine is set up, not of another rank.

NCCL explains each kind of error in a sentence that does not depend on what happened, such as "System call (e.g. socket,
malloc) or external library call failed". What happened stands after "Last error:".
"""

from collections.abc import Callable
from typing import NamedTuple

import psutil

from graphpipe.errors import InvalidInput
from graphpipe.run.meeting.host_address import INTERFACE

_EXPLANATION, _HAPPENED = "nccl error", "last error:"


class _SetUpError(NamedTuple):
    signs: tuple[str, ...]
    what: str
    where: str
    remedy: Callable[[], str]


def what_happened(error: BaseException) -> str:
    """Return what an error of torch.distributed says in lower case, without NCCL's explanation of its kind."""
    text = str(error).lower()
    if _EXPLANATION not in text or "ncclremoteerror" in text:  # The explanation of this one is what happened.
        return text
    _, found, happened = text.partition(_HAPPENED)
    return happened.strip() if found else ""


def set_up_error(error: BaseException) -> InvalidInput | None:
    """Return what a user can mend; None for other errors."""
    text = what_happened(error)
    for sign in _KNOWN:
        if any(word in text for word in sign.signs):
            lines = (line.strip() for line in str(error).splitlines())
            said = next((line for line in lines if any(word in line.lower() for word in sign.signs)), "")
            return InvalidInput(f"{sign.what} ({said})", where=sign.where, remedy=sign.remedy())
    return None


def _interfaces() -> str:
    return ", ".join(sorted(psutil.net_if_addrs()))


_KNOWN = (
    _SetUpError(
        ("no socket interface found", "no usable listening interface"),
        "NCCL finds no network interface by which ranks could meet",
        "NCCL_SOCKET_IFNAME",
        lambda: f"Unset it, or set it to one of {_interfaces()}.",
    ),
    _SetUpError(
        ("unable to find address for", "unable to find interface"),
        "gloo finds no network interface by which ranks could meet",
        INTERFACE,
        lambda: f"Unset it, or set it to one of {_interfaces()}.",
    ),
    _SetUpError(
        ("duplicate gpu detected",),
        "two ranks compute on the same GPU",
        "LOCAL_RANK",
        lambda: "Start one rank per GPU, each with its own LOCAL_RANK, or with its own CUDA_VISIBLE_DEVICES.",
    ),
    _SetUpError(
        ("peer access is not supported",),
        "two GPUs cannot read each other's memory, although NCCL was told that they can",
        "NCCL_P2P_LEVEL",
        lambda: "Set NCCL_P2P_DISABLE=1, and look at `nvidia-smi topo -p2p r`.",
    ),
    _SetUpError(
        ("driver version is insufficient", "forward compatibility was attempted"),
        "the driver is too old for the CUDA of this torch",
        "CUDA",
        lambda: "Install a newer driver, or a torch that was built for an older CUDA (see `nvidia-smi`).",
    ),
    _SetUpError(
        ("error while creating shared memory segment", "no space left on device"),
        "NCCL has too little shared memory",
        "/dev/shm",
        lambda: "Start the container with --shm-size=1g or --ipc=host, or mount a larger /dev/shm.",
    ),
    _SetUpError(
        ("mismatched nccl version", "mismatch version", "protocol version mismatch"),
        "the ranks have different versions of NCCL",
        "NCCL",
        lambda: "Install the same torch on every host.",
    ),
)
