"""List scheduling by a logical clock. Times are whole numbers, so that every rank computes the same order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChain:
    """Tasks that one device does in this order. If a device has several chains, the clock interleaves them."""

    device: int
    tasks: Sequence[int]


@dataclass(slots=True)
class LogicalClock:
    """Every device takes the task that can start first. Of several, it takes the one with the smallest number.

    Taking a task never makes another one impossible. If a task never starts, no order that keeps these chains can
    start it.
    """

    ticks: Sequence[int]
    """Duration of each task, by number."""
    starts: dict[int, int] = field(default_factory=dict[int, int])
    """When each task starts, in order of their starts."""
    device_of: dict[int, int] = field(default_factory=dict[int, int])
    _followers: list[list[int]] = field(default_factory=list[list[int]])
    _missing: list[int] = field(default_factory=list[int])

    def run(self, chains: Iterable[TaskChain], flows: Iterable[tuple[int, int]]) -> None:
        """Set `starts` and `device_of`.

        Args:
            chains: of all devices.
            flows: (producer, consumer) pairs of tasks: a consumer starts after all its producers.
        """
        self._followers = [[] for _ in self.ticks]
        self._missing = [0] * len(self.ticks)
        for chain in chains:
            self.device_of.update(dict.fromkeys(chain.tasks, chain.device))
            self._add(pairwise(chain.tasks))
        self._add(flows)
        self._advance()

    def _add(self, flows: Iterable[tuple[int, int]]) -> None:
        followers, missing = self._followers, self._missing
        for source, target in flows:
            followers[source].append(target)
            missing[target] += 1

    def _advance(self) -> None:
        ready = [0] * len(self.ticks)
        free = dict.fromkeys(self.device_of.values(), 0)
        heap = sorted((0, task) for task in self.device_of if not self._missing[task])
        while heap:
            start, task = heappop(heap)
            device = self.device_of[task]
            if free[device] > start:  # Another chain of the device took the time.
                heappush(heap, (free[device], task))
                continue
            self.starts[task] = start
            free[device] = end = start + self.ticks[task]
            for follower in self._followers[task]:
                self._missing[follower] -= 1
                ready[follower] = max(ready[follower], end)
                if not self._missing[follower]:
                    heappush(heap, (ready[follower], follower))
