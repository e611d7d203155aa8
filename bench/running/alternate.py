"""Time several engines in one run, one step of each in turn, so that the machine's noise is the same for all."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch.distributed as dist

Step = Callable[[], Any]


def alternate(
    steps: Mapping[str, Step], *, warmup: int, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of every timed step of each engine on this rank; all ranks call this.

    Every step begins at a barrier, and the engine that comes first changes from round to round.

    Args:
        steps: what one training step is, by engine.
        warmup: rounds before those that count.
        repeats: rounds that count.
        clock: where a step is one thread's work, that thread's own time is not lengthened by other processes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = [*steps]
    for turn in range(warmup + repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if dist.is_initialized():
                dist.barrier()
            start = clock()
            steps[name]()
            if turn >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def slowest(ranks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the seconds of every step on its slowest rank."""
    return {name: [max(each) for each in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}


def summary(seconds: Mapping[str, list[float]], ours: str, theirs: str) -> dict[str, Any]:
    """Return the median step of each engine, and ours over theirs: of the medians, and median of the rounds' ratios."""
    return {
        "seconds": {name: median(values) for name, values in seconds.items()},
        "ratio": median(seconds[ours]) / median(seconds[theirs]),
        "paired_ratio": paired_ratio(seconds[ours], seconds[theirs]),
        "steps": len(seconds[ours]),
    }


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(one / other for one, other in zip(ours, theirs, strict=True))
