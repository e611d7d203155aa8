"""What a caller may ask of any planner."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphpipe.plans.estimates import estimated_step_seconds, least_step_seconds
from graphpipe.plans.plan import Plan

Objective = Literal["step", "bottleneck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options common to all planners; a planner ignores what does not concern it."""

    objective: Objective = "step"
    """What candidates of one micro-batch size are ranked by. `step`: the time of a whole step. `bottleneck`: the
    published objective, the slowest stage's time per sample; only micro-batch sizes are then compared by step time."""
    evaluate: Callable[[Plan], float] = estimated_step_seconds
    """Seconds of one step of a plan."""
    scheduled: Callable[[Sequence[Plan]], Plan] | None = None
    """Returns the best of a search's finalists under the schedule that suits it best; None: they keep their own."""
    micro_batch: int | None = None
    """Only this micro-batch size; None sweeps."""
    mixed_micro_batches: bool = False
    """Let every stage have its own micro-batch size, with kFkB (GraphPipe, section 6)."""

    def best(self, plans: Iterable[Plan]) -> Plan:
        """Return the plan that `evaluate` finds best, the earlier of equals; at least one is given.

        Where the least time any schedule of its stages takes is no better than the best so far, a plan need not be
        evaluated; nor need the only one.
        """
        plans = list(plans)
        if len(plans) == 1:
            return plans[0]
        found: tuple[float, Plan] | None = None
        for plan in plans:
            if found is None or least_step_seconds(plan) < found[0]:
                seconds = self.evaluate(plan)
                if found is None or seconds < found[0]:
                    found = seconds, plan
        assert found is not None, "there is a plan to choose"
        return found[1]
