"""Times short functions: warm-up, then repeats until they agree."""

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles

WARM_UP, FEWEST, SPREAD, MOST_SECONDS = 3, 7, 0.05, 1.0
Run = Callable[[], object]


def steady_seconds(
    run: Run,
    *,
    spread: float = SPREAD,
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median seconds of a call, after calls that do not count.

    Args:
        run: to be timed.
        spread: repeat until the middle half of the calls differs by at most this share of their median.
        most_seconds: then stop in any case.
        clock: in seconds.
    """
    for _ in range(WARM_UP):
        run()
    seconds: list[float] = []
    end = clock() + most_seconds
    while len(seconds) < FEWEST or (not _agree(seconds, spread) and clock() < end):
        start = clock()
        run()
        seconds.append(clock() - start)
    return median(seconds)


def _agree(seconds: list[float], spread: float) -> bool:
    low, middle, high = quantiles(seconds, n=4)
    return high - low <= spread * middle


def alternating_medians(
    runs: Mapping[str, Run], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median seconds of each function. They take turns, so that the machine's noise is the same for all."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = [*runs]
    for turn in range(WARM_UP + rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            runs[name]()
            if turn >= WARM_UP:
                seconds[name].append(clock() - start)
    return {name: median(times) for name, times in seconds.items()}
