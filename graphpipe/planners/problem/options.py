"""Options common to all planners."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from graphpipe.planners.problem.limits import NEAR, NORMAL, SearchEffort
from graphpipe.planners.problem.remembered_plans import RememberedPlans
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.plans.estimates import estimated_step_seconds, least_step_seconds
from graphpipe.plans.plan import Plan

Objective = Literal["step", "bottleneck"]
InferenceObjective = Literal["throughput", "latency"]
OffloadTo = Literal["host", "neighbours"]


def _nothing(_: Plan) -> float:
    return 0.0


def endless() -> None:
    """Never end the search."""


def _unlimited(plan: Plan, _: float) -> float:
    return estimated_step_seconds(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options common to all planners. A planner declares those of a caller that it supports (`Planner.honours`)."""

    objective: Objective = "step"
    """How candidates of one micro-batch size are ranked. `step`: by the time of a whole step. `bottleneck`: by the
    slowest stage's time per sample, the published objective; only micro-batch sizes are then compared by step time."""
    inference_objective: InferenceObjective = "throughput"
    """Ranking for inference. `throughput`: by the busiest device or link. `latency`: by the last answer's time."""
    evaluate: Callable[[Plan], float] = estimated_step_seconds
    """Returns the seconds of one step of a plan."""
    least: Callable[[Plan], float] = _nothing
    """Returns a lower bound of `evaluate` quickly. It must not be larger through rounding either."""
    scheduled: Callable[[Sequence[Plan]], Plan] | None = None
    """Returns the best of a search's candidates, or one near it, under the caller's schedule or the best one. None:
    candidates keep their own schedule."""
    ranked: Callable[[Plan, float], float] = _unlimited
    """Returns quickly about the seconds of a step under the caller's schedule. Infinite if the plan does not run, or if
    the step takes longer than the second argument."""
    stages_per_device: int = 1
    """The most stages that a device may host, except for stages of the whole-batch tail."""
    in_a_v: bool = False
    """Whether the caller's schedule is only for pipelines whose devices host two stages each in a V."""
    most_seconds: float = inf
    """The most seconds of a step: slower plans are not wanted."""
    most_ranked: float = inf
    """The most seconds of a step, by `ranked`, of the best candidate before small changes. If it ranks behind that, the
    search ends."""
    splits_backward: bool = False
    """Whether `scheduled` may split the backward. More stages then fill and drain faster."""
    micro_batch: int | None = None
    """The only micro-batch size to try; None tries all."""
    effort: SearchEffort = NORMAL
    """How much GraphPipe's search tries."""
    check_time: Callable[[], None] = endless
    """Ends the search by an exception if its time is over."""
    mixed_micro_batches: bool = False
    """Whether each stage may have its own micro-batch size, with kFkB (GraphPipe, section 6)."""
    offload_to: OffloadTo = "host"
    """Where searched stages offload to. `neighbours`: also to other devices, where that is faster."""
    remembered: RememberedPlans = field(default_factory=RememberedPlans)
    """The plans of searches so far."""

    @property
    def most_at_first(self) -> float:
        """The most seconds of a step before small changes and shared devices make it shorter."""
        return self.most_seconds if self.scheduled is None else NEAR * self.most_seconds

    def kicks(self, work: int) -> int:
        """Return how often random changes leave the best plan of a problem. The published objective makes none."""
        return self.effort.kicks_for(work) if self.objective == "step" else 0

    def sizes(self, batch_size: int) -> list[int]:
        """Return the micro-batch sizes to try for a mini-batch, ascending."""
        return [self.micro_batch] if self.micro_batch else micro_batch_sizes(batch_size)

    def under_schedule(self, plan: Plan) -> Plan:
        """Return a plan, or one near it, under the caller's schedule; the plan itself if candidates keep their own."""
        return plan if self.scheduled is None else self.scheduled([plan])

    def chosen(self, plans: Sequence[Plan]) -> Plan:
        """Return the best of a search's candidates, or a plan near it, under the caller's schedule if there is one.

        The published objective makes no changes.
        """
        if self.scheduled is None or self.objective == "bottleneck":
            return self.best(plans)
        return self.scheduled(plans)

    def best(self, plans: Iterable[Plan]) -> Plan:
        """Return the fastest plan by `evaluate`, the earlier of equals; `plans` must not be empty.

        A plan is not evaluated if a lower bound is not better than the best plan so far, or if it is the only plan.
        """
        plans = list(plans)
        if len(plans) == 1:
            return plans[0]
        fastest: tuple[float, Plan] | None = None
        for plan in plans:
            if fastest is None or (least_step_seconds(plan) < fastest[0] and self.least(plan) < fastest[0]):
                seconds = self.evaluate(plan)
                if fastest is None or seconds < fastest[0]:
                    fastest = seconds, plan
        assert fastest is not None, "plans must not be empty"
        return fastest[1]
