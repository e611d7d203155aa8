"""Plans in the order of their seconds, of which only those are evaluated that are asked for."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from graphpipe.plans import Plan


class Ascending:
    """Orders plans by their seconds, the earlier of equals first, by way of lower bounds.

    A plan is evaluated when its lower bound is the least of what is left. Plans that come late are never evaluated.
    """

    def __init__(self, seconds: Callable[[Plan], float]) -> None:
        """Begin without plans.

        Args:
            seconds: of a plan.
        """
        self._seconds = seconds
        self._plans: list[Plan] = []
        self._heap: list[tuple[float, bool, int]] = []
        """Seconds or their lower bound, whether they are exact, and the number of the plan."""

    def add(self, plan: Plan, least_seconds: float) -> None:
        """Add a plan with a lower bound of its seconds."""
        heappush(self._heap, (least_seconds, False, len(self._plans)))
        self._plans.append(plan)

    def seconds_at(self, position: int) -> float:
        """Return the seconds of the plan at this position of the order; infinite if there are fewer."""
        if len(self._plans) <= position:
            return inf
        first = [self._next() for _ in range(position + 1)]
        self._heap += first
        heapify(self._heap)
        return first[-1][0]

    def __iter__(self) -> Iterator[Plan]:
        """Yield the plans, the one with the fewest seconds first. What is yielded is left out from then on."""
        while self._heap:
            yield self._plans[self._next()[2]]

    def _next(self) -> tuple[float, bool, int]:
        while not self._heap[0][1]:
            _, _, number = heappop(self._heap)
            heappush(self._heap, (self._seconds(self._plans[number]), True, number))
        return heappop(self._heap)
