"""Hill climbing from a finished plan, by small changes of its stages.

The search before it gives all stages one micro-batch size, and estimates partitions in closed form. The closed form
ignores late messages and stages that wait for two others. Small changes near the best plan correct for that.
Jeon et al., GraphPipe (ASPLOS 2025), section 6, allow each stage its own size and find that it gains little.
"""

from collections.abc import Callable, Iterable
from math import inf

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
    sizes: Iterable[int] | None = None,
    whole_backwards: bool = False,
    every: bool = False,
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
        sizes: micro-batch sizes that stages may change to; None: all that divide the mini-batch.
        whole_backwards: `evaluate` takes schedules that do not split backwards.
        every: whether to try changes that seldom help by themselves too.
    """
    if not trials or decides(plan):  # Its decisions are for these stages.
        return plan
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    allowed = tuple(sorted(micro_batch_sizes(plan.batch_size) if sizes is None else sizes))
    near, best, seconds = Neighbours(problem, plan), plan, evaluate(plan, inf)
    for _ in range(PASSES):
        start = best
        for attempt in near.attempts(allowed, every=every):
            trial = attempt(seconds)
            if trial is None or least_step_seconds(trial, whole_backwards=whole_backwards) >= seconds:
                continue
            if memory_shortfall(trial) > 0:
                continue
            if not trials:
                return best
            trials -= 1
            if (trial_seconds := evaluate(trial, seconds / WORTH)) * WORTH < seconds:
                best, seconds = trial, trial_seconds
                near.move(best)
                if len(best.stages) != len(start.stages):
                    break  # The other changes of this pass name stages by their old positions.
        if best is start:
            break
    return best
