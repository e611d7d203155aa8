"""Random numbers that depend on what is computed, not on where: the same plan gives the same dropout anywhere."""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


@contextmanager
def preserve_rng_state(device: torch.device) -> Generator[None]:
    """Restore torch's generators at the end of the block; used once per step, because it costs more than `seed`."""
    cpu = torch.default_generator.get_state()
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if own is not None:
            torch.cuda.set_rng_state(own, device)


def derive_seed(*key: int) -> int:
    """Return the seed of the generators for `key` (seed, step, stage, micro-batch, replica)."""
    digest = blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed(device: torch.device, number: int) -> None:
    """Seed torch's generators of the CPU and of `device`."""
    # Not torch.manual_seed, which formats a stack trace where there is no GPU.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


@dataclass(frozen=True, slots=True)
class RngState:
    """The state of torch's generators of the CPU and of one device."""

    device: torch.device
    cpu: Tensor
    own: Tensor | None
    """The state of the device's generator, if it is a GPU."""

    @staticmethod
    def now(device: torch.device) -> "RngState":
        """Return the current state."""
        own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return RngState(device, torch.get_rng_state(), own)

    def moved(self) -> bool:
        """Whether numbers have been drawn since then."""
        now = RngState.now(self.device)
        pairs = ((self.cpu, now.cpu), (self.own, now.own))
        return any(one is not None and other is not None and not torch.equal(one, other) for one, other in pairs)

    @contextmanager
    def restored(self) -> Generator[None]:
        """Set the generators to this state for the block, and restore them afterwards."""
        with torch.random.fork_rng(devices=[] if self.own is None else [self.device]):
            torch.set_rng_state(self.cpu)
            if self.own is not None:
                torch.cuda.set_rng_state(self.own, self.device)
            yield
