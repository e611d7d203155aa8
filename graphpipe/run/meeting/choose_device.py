"""On which device a rank computes."""

import torch

from graphpipe.devices.cpu import CPU
from graphpipe.devices.device_kind import DeviceKind
from graphpipe.devices.registry import all_device_kinds, default_kind
from graphpipe.errors import InvalidInput
from graphpipe.torchrun import local_rank


def choose_device(device: torch.device | str | None, ranks: int) -> torch.device:
    """Return where this rank computes, and make it the current device.

        visible devices   rank on its machine   device
        8                 3                     3
        1                 3                     0: the launcher shows every rank its own
        8                 unknown               refused, if there are several ranks
        2                 3                     refused

    Args:
        device: with or without a number; None is the accelerator that this process can use, or else the CPU.
        ranks: how many there are, on all machines.

    Raises:
        InvalidInput: it is no device, this machine does not have it, or nothing says which one is this rank's.
    """
    try:
        place = torch.device(device if device is not None else default_kind().name)
    except RuntimeError:
        *names, last = sorted(all_device_kinds())
        remedy = f"Write {', '.join([*names, last])} or {last}:0."
        raise InvalidInput(f"'{device}' is no device", remedy=remedy) from None
    kind = all_device_kinds().get(place.type, CPU)
    if kind.on_host:
        return place
    place = place if ":" in str(place) else torch.device(kind.name, _number(kind, ranks))
    if place.index >= kind.count():
        raise InvalidInput(
            f"this rank would compute on {place}, the machine has {kind.count()} {kind.name.upper()} devices",
            remedy="Start fewer processes per machine, or pass device='cpu'.",
        )
    kind.select(place)
    return place


def _number(kind: DeviceKind, ranks: int) -> int:
    count, local = kind.count(), local_rank()
    if count == 1:
        return 0
    if local is None and ranks > 1:
        raise InvalidInput(
            f"there are {ranks} ranks and {count} {kind.name.upper()} devices here, and nothing says which is this "
            "rank's",
            where="LOCAL_RANK",
            remedy="Set it to the number of this rank on its machine, as torchrun does, or pass "
            f"device='{kind.name}:0' and so on.",
        )
    return local or 0
