"""The event engine: when activities happen, given the seconds of each and the activities that it waits for.

A resource that serves one activity at a time is not represented here. The order of its users is fixed beforehand, so
each of them waits for the one before. Cores and ports serve several at a time, each of them more slowly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphpipe.simulator.events.port_queue import PortQueue, Uses


class Activity(NamedTuple):
    """Something that takes time."""

    seconds: float
    needs: tuple[int, ...]
    """Positions of the activities that must end first. All are before its own position."""
    pool: str | None = None
    """The pool of cores that does the work, if cores are shared (see `run_shared`)."""
    uses: Uses = ()
    """The ports that it takes, if ports are shared (see `run_shared`)."""
    delay: float = 0.0
    """The first part of its seconds, in which it does not take its ports yet: the latency of a message."""


class Interval(NamedTuple):
    """When an activity happened, in seconds from the start."""

    start: float
    end: float


def run(activities: Sequence[Activity]) -> list[Interval]:
    """Return when each activity happens if each starts as soon as all activities that it needs have ended."""
    happened: list[Interval] = []
    for seconds, needs, *_ in activities:
        start = max([happened[need][1] for need in needs], default=0.0)
        happened.append(Interval(start, start + seconds))
    return happened


def ends_of_steps(activities: Sequence[Activity], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when each activity of `run` ends in several steps, in which they take other seconds.

    Args:
        activities: of every step.
        seconds: [activities, steps].

    Returns:
        [activities, steps].
    """
    ends = seconds.copy()
    for (_, needs, *_), end in zip(activities, ends, strict=True):
        if len(needs) == 1:
            end += ends[needs[0]]
        elif needs:
            end += ends[list(needs)].max(axis=0)
    return ends


def run_shared(activities: Sequence[Activity], cores: Mapping[str, float]) -> list[Interval]:
    """Return when each activity happens if the running ones share cores and ports.

    With n activities running in a pool of c cores, each progresses at rate min(1, c / n) (processor sharing). An
    activity whose pool is not in `cores` has the share of its ports (see `port_queue`).
    """
    starts, ends = [0.0] * len(activities), [inf] * len(activities)
    followers, missing = _followers(activities)
    pools, queue = {pool: _Pool(count) for pool, count in cores.items()}, PortQueue[int]()
    began = [number for number, count in enumerate(missing) if not count]
    now = 0.0
    while True:
        for number in began:
            starts[number] = now
            seconds, _, name, uses, delay = activities[number]
            if name in pools:
                pools[name].begin(number, seconds)
            else:
                queue.begin(now, number, seconds, uses, delay)
        pool = min(pools.values(), key=_Pool.next_seconds, default=None)
        passed, at = inf if pool is None else pool.next_seconds(), queue.next_seconds()
        if passed == at == inf:
            return list(map(Interval, starts, ends))
        from_queue = pool is None or at <= now + passed
        passed, now = (at - now, at) if from_queue else (passed, now + passed)
        for other in pools.values():
            other.advance(passed)
        ended = queue.advance() if pool is None or from_queue else pool.end()
        began = [] if ended is None else _freed(followers[ended], missing)
        if ended is not None:
            ends[ended] = now


def _freed(followers: Sequence[int], missing: list[int]) -> list[int]:
    """Return the activities that can begin, because the one that they follow has ended."""
    freed: list[int] = []
    for follower in followers:
        missing[follower] -= 1
        if not missing[follower]:
            freed.append(follower)
    return freed


def _followers(activities: Sequence[Activity]) -> tuple[list[list[int]], list[int]]:
    followers: list[list[int]] = [[] for _ in activities]
    for number, activity in enumerate(activities):
        for need in activity.needs:
            followers[need].append(number)
    return followers, [len(activity.needs) for activity in activities]


@dataclass(slots=True)
class _Pool:
    """A pool of cores. Its clock counts the seconds of work that each running activity has received since the start."""

    cores: float
    clock: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """A heap of (clock at the end of the activity, activity)."""

    @property
    def rate(self) -> float:
        return min(1.0, self.cores / len(self.running)) if self.running else 0.0

    def begin(self, number: int, seconds: float) -> None:
        heappush(self.running, (self.clock + seconds, number))

    def next_seconds(self) -> float:
        """Return the seconds until the first activity ends, if another one does not begin before."""
        return max(0.0, self.running[0][0] - self.clock) / self.rate if self.running else inf

    def advance(self, seconds: float) -> None:
        self.clock += seconds * self.rate

    def end(self) -> int:
        return heappop(self.running)[1]
