"""Random numbers that depend on what is computed, not on where: the same plan gives the same dropout anywhere."""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b

import torch


@contextmanager
def apart(device: torch.device) -> Generator[None]:
    """Put torch's generators back, afterwards, to where they are now: once per step, as it costs more than `seed`."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed(device: torch.device, *key: int) -> None:
    """Seed torch's generators from `key` (seed, step, stage, micro-batch, replica)."""
    digest = blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    # Not torch.manual_seed, which formats a stack trace where there is no GPU.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
