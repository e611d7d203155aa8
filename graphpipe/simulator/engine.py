"""When things happen, given how long each takes and what it waits for. Knows nothing of plans or devices.

A resource used by one activity at a time needs no notion here: the order of its users is known beforehand, so each
simply waits for the one before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple


class Activity(NamedTuple):
    """Something that takes time."""

    seconds: float
    needs: tuple[int, ...]
    """Positions of activities, all before its own, that must end first."""
    pool: str | None = None
    """Where its work is done, if shared: see `run_shared`."""


class Interval(NamedTuple):
    """When an activity happened, in seconds from the start."""

    start: float
    end: float


def run(activities: Sequence[Activity]) -> list[Interval]:
    """Return when each activity happens if each starts as soon as all it needs has ended."""
    happened: list[Interval] = []
    for seconds, needs, _ in activities:
        start = max([happened[need][1] for need in needs], default=0.0)
        happened.append(Interval(start, start + seconds))
    return happened


def run_shared(activities: Sequence[Activity], cores: Mapping[str, float]) -> list[Interval]:
    """Return when each activity happens if the running ones of a pool share its cores equally.

    With n activities running in a pool of c cores, each progresses at rate min(1, c / n): processor sharing. A pool
    without an entry in `cores`, or none at all, has a core for everyone.
    """
    starts, ends = [0.0] * len(activities), [inf] * len(activities)
    followers, missing = _followers(activities)
    pools = {pool: _Pool(cores.get(pool, inf) if pool is not None else inf) for _, _, pool in activities}
    began = [number for number, count in enumerate(missing) if not count]
    now = 0.0
    while True:
        for number in began:
            starts[number] = now
            pools[activities[number].pool].begin(number, activities[number].seconds)
        pool = min(pools.values(), key=_Pool.next_seconds, default=None)
        if pool is None or pool.next_seconds() == inf:
            return list(map(Interval, starts, ends))
        passed = pool.next_seconds()
        now += passed
        for other in pools.values():
            other.advance(passed)
        ended = pool.end()
        ends[ended] = now
        began = []
        for follower in followers[ended]:
            missing[follower] -= 1
            if not missing[follower]:
                began.append(follower)


def _followers(activities: Sequence[Activity]) -> tuple[list[list[int]], list[int]]:
    followers: list[list[int]] = [[] for _ in activities]
    for number, activity in enumerate(activities):
        for need in activity.needs:
            followers[need].append(number)
    return followers, [len(activity.needs) for activity in activities]


@dataclass(slots=True)
class _Pool:
    """Its clock shows how many seconds of work each running activity has been given since the beginning."""

    cores: float
    clock: float = 0.0
    running: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """A heap of (clock at which it ends, activity)."""

    @property
    def rate(self) -> float:
        return min(1.0, self.cores / len(self.running)) if self.running else 0.0

    def begin(self, number: int, seconds: float) -> None:
        heappush(self.running, (self.clock + seconds, number))

    def next_seconds(self) -> float:
        """Seconds until the first activity ends, if none begins before."""
        return max(0.0, self.running[0][0] - self.clock) / self.rate if self.running else inf

    def advance(self, seconds: float) -> None:
        self.clock += seconds * self.rate

    def end(self) -> int:
        return heappop(self.running)[1]
