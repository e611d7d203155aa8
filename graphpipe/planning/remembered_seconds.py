"""Remembers the seconds of plans, because a search meets many plans again."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf

from graphpipe.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class RememberedSeconds:
    """Seconds of a plan by another function, which is called once for equal stages, edges and schedules."""

    seconds: Callable[[Plan, float], float]
    """Of a plan. It may be infinite where they are more than the second argument."""
    _known: dict[Hashable, tuple[float, float]] = field(default_factory=dict[Hashable, tuple[float, float]])
    """The seconds, and the limit up to which they were found."""
    _held: dict[int, object] = field(default_factory=dict[int, object])
    """Graphs, costs and clusters by identity, which no other object may take."""

    def __call__(self, plan: Plan, limit_seconds: float = inf) -> float:
        """Return the seconds of a plan. They may be infinite where they are more than the limit."""
        key = self._key(plan)
        seconds, limit = self._known.get(key, (inf, -inf))
        if seconds == inf and limit_seconds > limit:
            seconds = self.seconds(plan, limit_seconds)
            self._known[key] = seconds, limit_seconds
        return seconds

    def knows(self, plan: Plan) -> bool:
        """Return whether the seconds of a plan are known, so that asking for them takes no time."""
        return self._key(plan) in self._known

    def _key(self, plan: Plan) -> Hashable:
        large = plan.graph, plan.costs, plan.cluster
        self._held.update((id(each), each) for each in large)
        each = plan.batch_size, plan.schedule, plan.weights, plan.predictor, plan.trains
        return (*map(id, large), plan.stages, plan.edges, *each)
