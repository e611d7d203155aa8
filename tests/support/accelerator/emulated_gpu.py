"""A GPU of this process that computes on the CPU, and communicates by NCCL's rules."""

import torch
from emulated_nccl import NAME, RULES, register
from fake_device import FakeKind

from graphpipe.devices import registry


class EmulatedGpu(FakeKind):
    """Devices that torch calls `cpu`, and that are treated as GPUs everywhere."""

    backend = NAME
    on_host = True  # torch does not number them
    precisions = ("fp32", "bf16", "fp16")

    def count(self) -> int:
        return 64

    def select(self, device: torch.device) -> None:
        """Do nothing."""

    def backend_available(self) -> bool:
        return True

    def random_state(self, device: torch.device) -> None:
        return None


def use_emulated_gpus(*, eager: bool = False, seed: int = 0) -> None:
    """Make this process compute on emulated GPUs from now on."""
    register()
    RULES.eager, RULES.seed = eager, seed
    registry.DEVICE_KINDS._items["cpu"] = EmulatedGpu("cpu")
