"""Hill climbing from a finished plan, by small changes of its stages.

The search before it gives all stages one micro-batch size, and estimates partitions in closed form. The closed form
ignores late messages and stages that wait for two others. Small changes near the best plan correct for that.
Jeon et al., GraphPipe (ASPLOS 2025), section 6, allow each stage its own size and find that it gains little.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf

from graphpipe.planners.improve.iterated import iterated
from graphpipe.planners.improve.neighbours import Neighbours
from graphpipe.planners.improve.relieved import decides
from graphpipe.planners.problem.limits import PASSES, WORTH
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan


def hill_climb(
    plan: Plan,
    evaluate: Callable[[Plan, float], float],
    trials: int,
    *,
    kicks: int = 0,
    sizes: Iterable[int] | None = None,
    whole_backwards: bool = False,
) -> Plan:
    """Return the plan, or a faster one near it.

    A change is kept if it shortens the step and fits in memory, until a whole pass changes nothing. `Changes` lists
    the changes. Stages keep their devices, unless a change is of these, of degrees or of the number of stages. A plan
    whose stages name what they recompute or offload stays as it is.

    Args:
        plan: under 1F1B, or any schedule that takes the samples in flight of Algorithm 2.
        evaluate: returns the seconds of one step of a plan; infinite if the plan does not run, or if the step takes
            longer than the second argument.
        trials: most evaluations.
        kicks: how often the best plan of a small problem is left by random changes (`iterated`).
        sizes: micro-batch sizes that stages may change to; None: all that divide the mini-batch.
        whole_backwards: `evaluate` takes schedules that do not split backwards.
    """
    if not trials or decides(plan):  # Its decisions are for these stages.
        return plan
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    allowed = tuple(sorted(micro_batch_sizes(plan.batch_size) if sizes is None else sizes))
    climb = _Climb(problem, evaluate, allowed, whole_backwards, kicks > 0, trials)
    seconds, best = climb.of(plan)
    return iterated(best, seconds, kicks, climb.of, climb.changes)[1]


@dataclass(slots=True)
class _Climb:
    problem: Problem
    evaluate: Callable[[Plan, float], float]
    sizes: tuple[int, ...]
    whole_backwards: bool
    every: bool
    """See `Neighbours.attempts`."""
    trials: int
    """Evaluations that are left."""

    def of(self, best: Plan) -> tuple[float, Plan]:
        """Return the seconds of the best plan after small changes, and the plan."""
        near, seconds = Neighbours(self.problem, best), self.evaluate(best, inf)
        for _ in range(PASSES):
            start = best
            for attempt in near.attempts(self.sizes, every=self.every):
                trial = attempt(seconds)
                if trial is None or least_step_seconds(trial, whole_backwards=self.whole_backwards) >= seconds:
                    continue
                if memory_shortfall(trial) > 0:
                    continue
                if not self.trials:
                    return seconds, best
                self.trials -= 1
                if (trial_seconds := self.evaluate(trial, seconds / WORTH)) * WORTH < seconds:
                    best, seconds = trial, trial_seconds
                    near.move(best)
                    if len(best.stages) != len(start.stages):
                        break  # The other changes of this pass name stages by their old positions.
            if best is start:
                break
        return seconds, best

    def changes(self, plan: Plan) -> list[Callable[[], Plan | None]]:
        """Return the changes of a plan, however long the step then takes."""
        return [partial(attempt, inf) for attempt in Neighbours(self.problem, plan).attempts(self.sizes, every=True)]
