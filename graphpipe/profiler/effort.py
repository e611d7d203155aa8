"""How many times to repeat a measurement, and which clock times it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import final

from graphpipe.devices.device_kind import DeviceClock, Moment

_SPIKE = 2.0
"""Multiple of the median beyond which a measurement counts as this much."""


TimeSpan = tuple[Moment, Moment]
"""The begin and the end of what is timed. Their seconds are known after `Effort.seconds_of`."""


@final
class _Host(DeviceClock):
    # The clock of code that is done when its call returns.

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def now(self) -> Moment:
        return self._clock()

    def settle(self) -> None:
        pass

    def seconds(self, start: Moment, end: Moment) -> float:
        assert isinstance(start, float | int)
        assert isinstance(end, float | int)
        return end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure.

    At least `repeats` times. Then until `seconds` have passed and the measurements agree, or until there are
    `repeats_if_uneven` of them. Never more than `most` times.
    """

    repeats: int = 3
    repeats_if_uneven: int = 5
    spread: float = 0.1
    """Measurements agree if the largest of their sums exceeds the smallest by at most this fraction of the smallest."""
    most: int = 50
    seconds: float = 0.03
    """Seconds of measurement for each operator."""
    clock: Callable[[], float] = field(default=time.perf_counter)
    device_clock: DeviceClock | None = None
    """Times operators on a device that runs behind the host. None: `clock` times them."""
    warm_up_seconds: float = 0.0
    """Seconds of measuring that do not count, in which a device raises its frequency."""
    between: Callable[[], object] = field(default=lambda: None)
    """What is called before the forwards and before the backwards, to leave the caches as other work leaves them."""

    def sample(self, action: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        """Return the mean of each figure that `action` returns. Nothing warms up: call `action` once before.

        The mean, not the median: a step is the sum of many tasks, and a busy machine makes more of them slow than fast.
        Medians predicted steps of mmt on 4 ranks of two cores 11 % too short, and means 8 % (median of nine rounds). A
        rare spike counts as twice the median, so that it cannot decide what an operator costs.
        """
        start = self.clock()
        figures: list[Sequence[float]] = []
        while len(figures) < self.repeats or (len(figures) < self.most and self._goes_on(figures, start)):
            figures.append(action())
        return tuple(map(_mean, zip(*figures, strict=True)))

    def _goes_on(self, figures: Sequence[Sequence[float]], start: float) -> bool:
        sums = [sum(figure) for figure in figures]
        agree = max(sums) <= (1 + self.spread) * min(sums)
        return self.clock() - start < self.seconds or not (agree or len(figures) >= self.repeats_if_uneven)

    @property
    def amounts(self) -> tuple[float, ...]:
        """The numbers that decide what is measured: how long, and how much a spike counts."""
        return (self.repeats, self.repeats_if_uneven, self.spread, self.most, self.seconds, _SPIKE)

    def share(self, repeats: float, seconds: float) -> float:
        """Return the share that is done, from 0 to 1, after this many repeats and seconds of measuring.

        It is an estimate for measurements that do not agree. Others end sooner.
        """
        return min(1.0, repeats / self.repeats_if_uneven, seconds / self.seconds if self.seconds else 1.0)

    def now(self) -> Moment:
        """Return this moment; on a device, the moment when all operations queued so far are done, without a wait."""
        return self._timer.now()

    def seconds_of(self, spans: Sequence[TimeSpan]) -> list[float]:
        """Return the seconds of spans, after all of them have passed."""
        timer = self._timer
        timer.settle()
        return [timer.seconds(start, end) for start, end in spans]

    @property
    def _timer(self) -> DeviceClock:
        return self.device_clock or _Host(self.clock)


def _mean(seconds: Sequence[float]) -> float:
    most = _SPIKE * median(seconds)
    return fmean(min(time, most) for time in seconds)
