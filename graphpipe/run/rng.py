"""Random numbers that depend on what is computed, not on where: the same plan gives the same dropout anywhere."""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b

import torch


@contextmanager
def seeded(device: torch.device, *key: int) -> Generator[None]:
    """Seed torch's generators from `key` (seed, step, stage, micro-batch, replica), and restore them afterwards."""
    digest = blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        # Not torch.manual_seed, which formats a stack trace where there is no GPU.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield
