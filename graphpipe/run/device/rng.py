"""Random numbers that depend on what is computed, not on where: the same plan gives the same dropout anywhere."""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from graphpipe.devices.registry import kind_of


@contextmanager
def preserve_rng_state(device: torch.device) -> Generator[None]:
    """Restore torch's generators at the end of the block; used once per step, because it costs more than `seed`."""
    cpu = torch.default_generator.get_state()
    kind = kind_of(device)
    own = kind.random_state(device)
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if own is not None:
            kind.set_random_state(device, own)


def derive_seed(*key: int) -> int:
    """Return the seed of the generators for `key` (seed, step, stage, micro-batch, replica)."""
    digest = blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed(device: torch.device, number: int) -> None:
    """Seed torch's generators of the CPU and of `device`."""
    # Not torch.manual_seed, which formats a stack trace where there is no GPU.
    torch.default_generator.manual_seed(number)
    kind_of(device).seed(number)


@dataclass(frozen=True, slots=True)
class RngState:
    """The state of torch's generators of the CPU and of one device."""

    device: torch.device
    """The device."""
    cpu: Tensor
    """The state of the CPU's generator."""
    own: Tensor | None
    """The state of the device's generator; None if that is the CPU's."""

    @staticmethod
    def now(device: torch.device) -> "RngState":
        """Return the current state."""
        return RngState(device, torch.get_rng_state(), kind_of(device).random_state(device))

    def moved(self) -> bool:
        """Whether numbers have been drawn since then."""
        now = RngState.now(self.device)
        pairs = ((self.cpu, now.cpu), (self.own, now.own))
        return any(one is not None and other is not None and not torch.equal(one, other) for one, other in pairs)

    @contextmanager
    def restored(self) -> Generator[None]:
        """Set the generators to this state for the block, and restore them afterwards."""
        with preserve_rng_state(self.device):
            torch.default_generator.set_state(self.cpu)
            if self.own is not None:
                kind_of(self.device).set_random_state(self.device, self.own)
            yield
