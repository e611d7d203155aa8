"""Random numbers of a user's data that depend on what is read, not on who reads it."""

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(number: int) -> None:
    """Seed the process-wide generators of torch (CPU), Python and NumPy."""
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)


@contextmanager
def seeded(number: int) -> Generator[None]:
    """Seed the process-wide generators for the block, and restore them at its end."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    seed_all(number)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])
