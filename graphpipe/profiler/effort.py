"""How many times to repeat a measurement, and which clock times it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: until both `repeats` and `seconds` are reached, but never more than `most` times."""

    repeats: int = 5
    most: int = 50
    seconds: float = 0.03
    """Per operator."""
    clock: Callable[[], float] = field(default=time.perf_counter)
    between: Callable[[], object] = field(default=lambda: None)
    """Called before the forwards and before the backwards, to leave the caches as other work leaves them."""

    def sample(self, action: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """Return the median of each figure that `action` returns, after one call to warm up."""
        action()
        start = self.clock()
        figures: list[Sequence[float]] = []
        while len(figures) < self.repeats or (len(figures) < self.most and self.clock() - start < self.seconds):
            figures.append(action())
        return tuple(median(column) for column in zip(*figures, strict=True))

    def now(self) -> float:
        """Return the time, after waiting until an accelerator (if there is one) has finished its work."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.clock()
