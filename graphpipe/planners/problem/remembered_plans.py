"""Remembers the plans of searches: one with several stages per device repeats the one without, and where memory is
short, the first one has met many of the plans that more memory allows."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields

from graphpipe.cluster import Cluster
from graphpipe.planners.problem.partition import Problem
from graphpipe.plans.plan import Plan

_BY_VALUE = (Cluster, str, int, float, type(None))
"""Other values count as equal only if they are the same object."""


@dataclass(frozen=True, slots=True)
class RememberedPlans:
    """Plans by what they were searched for."""

    _known: dict[Hashable, list[Plan]] = field(default_factory=dict[Hashable, list[Plan]])
    _roomier: dict[Hashable, list[Callable[[float], list[Plan]]]] = field(
        default_factory=dict[Hashable, list[Callable[[float], list[Plan]]]]
    )
    """The searches for plans of devices with more memory, by problem."""
    _held: list[object] = field(default_factory=list[object])
    """Objects whose identity is in a key, which no other object may take."""

    def plans(self, wanted: Sequence[object], find: Callable[[], list[Plan]]) -> list[Plan]:
        """Return the plans that `find` returns, or has returned where the same was wanted.

        Args:
            wanted: all that matters to the search.
            find: the search.

        Raises:
            Infeasible: the search raises it.
        """
        key = _key(wanted)
        if key not in self._known:
            self._known[key] = find()
            self._held.append(wanted)
        return self._known[key]

    def add_search(self, problem: Problem, with_memory: Callable[[float], list[Plan]]) -> None:
        """Remember a search of a problem.

        Args:
            problem: searched under any message bandwidth.
            with_memory: returns the best plans that it met, if devices had this many times their memory.
        """
        self._held.append(problem)
        self._roomier.setdefault(_key(_without_bandwidth(problem)), []).append(with_memory)

    def with_memory(self, problem: Problem, times: float) -> list[Plan]:
        """Return the best plans that the searches of a problem met, if devices had this many times their memory."""
        searches = self._roomier.get(_key(_without_bandwidth(problem)), [])
        return [plan for search in searches for plan in search(times)]


def _key(wanted: Sequence[object]) -> Hashable:
    return tuple([part if isinstance(part, _BY_VALUE) else id(part) for part in wanted])


def _without_bandwidth(problem: Problem) -> list[object]:
    return [getattr(problem, field.name) for field in fields(problem) if field.name != "message_bandwidth"]
