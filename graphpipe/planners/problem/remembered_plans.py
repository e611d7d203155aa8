"""Remembers the plans of searches, because a search with several stages per device repeats the one without."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from graphpipe.cluster import Cluster
from graphpipe.plans.plan import Plan

_BY_VALUE = (Cluster, str, int, float, type(None))
"""Other values count as equal only if they are the same object."""


@dataclass(frozen=True, slots=True)
class RememberedPlans:
    """Plans by what they were searched for."""

    _known: dict[Hashable, Plan] = field(default_factory=dict[Hashable, Plan])
    _held: list[object] = field(default_factory=list[object])
    """Objects whose identity is in a key, which no other object may take."""

    def plan(self, wanted: Sequence[object], find: Callable[[], Plan]) -> Plan:
        """Return the plan that `find` returns, or has returned where the same was wanted.

        Args:
            wanted: all that matters to the search.
            find: the search.

        Raises:
            Infeasible: the search raises it.
        """
        key = tuple([each if isinstance(each, _BY_VALUE) else id(each) for each in wanted])
        if key not in self._known:
            self._known[key] = find()
            self._held.append(wanted)
        return self._known[key]
