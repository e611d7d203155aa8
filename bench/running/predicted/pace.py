"""The pace of the machine: the core time that a fixed piece of work takes.

A virtual core is often one of the two threads of a real one. While another virtual machine uses the other thread,
everything takes up to two thirds longer, for seconds at a time. Within the machine only known work shows this.
"""

import math
import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

NEAR = 1.10
"""Largest multiple of the least pace that counts as undisturbed."""
_REPEATS = 10


def pace() -> float:
    """Return the processor seconds of a forward and a backward of layers that nothing else uses, a few milliseconds.

    As much goes before, unmeasured: what has slept is slow at first.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))
        rows = torch.randn(512, 64)
    seconds: list[float] = []
    for _ in range(2 * _REPEATS):
        start = time.thread_time()
        layers(rows).sum().backward()
        seconds.append(time.thread_time() - start)
    return median(seconds[_REPEATS:])


@dataclass(slots=True)
class Calm:
    """Decides whether the machine is undisturbed, from the least pace so far with the same number of ranks."""

    least: float = math.inf
    """Processor seconds."""

    def watch(self, seconds: float) -> None:
        """Measure for this long, which should exceed the length of disturbances."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.agrees(pace())

    def agrees(self, found: float) -> bool:
        """Return whether a pace is near the least, itself included."""
        self.least = min(self.least, found)
        return found <= NEAR * self.least
