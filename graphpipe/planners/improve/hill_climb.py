"""Hill climbing from a finished plan, by small changes of its stages.

The search before it gives all stages one micro-batch size, and estimates partitions in closed form. The closed form
ignores late messages and stages that wait for two others. Small changes near the best plan correct for that.
Jeon et al., GraphPipe (ASPLOS 2025), section 6, allow each stage its own size and find that it gains little.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from math import inf

from graphpipe.planners.improve.changes import Change, Changes
from graphpipe.planners.improve.relieved import decides
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain, stage_order
from graphpipe.planners.problem.stage_costs import micro_batch_sizes
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import least_step_seconds
from graphpipe.plans.plan import Plan

_Hosted = frozenset[tuple[Part, tuple[int, ...]]]
"""Stages with their devices, which are empty where they follow from the degrees."""
_PASSES = 4
_WORTH = 1.0005
"""Smaller gains are not worth an unequal plan."""


def hill_climb(
    plan: Plan,
    evaluate: Callable[[Plan, float], float],
    trials: int,
    *,
    sizes: Iterable[int] | None = None,
    whole_backwards: bool = False,
) -> Plan:
    """Return the plan, or a faster one near it.

    A change is kept if it shortens the step and fits in memory, until a whole pass changes nothing. `Changes` lists
    the changes. Stages keep their devices, unless a change is of degrees or of the number of stages. A plan whose
    stages name what they recompute or offload stays as it is.

    Args:
        plan: under 1F1B, or any schedule that takes the samples in flight of Algorithm 2.
        evaluate: returns the seconds of one step of a plan; infinite if the plan does not run, or if the step takes
            longer than the second argument.
        trials: most evaluations.
        sizes: micro-batch sizes that stages may change to; None: all that divide the mini-batch.
        whole_backwards: `evaluate` takes schedules that do not split backwards.
    """
    if decides(plan):  # its decisions are for these stages
        return plan
    problem = Problem(plan.graph, plan.costs, plan.cluster, plan.batch_size)
    allowed = tuple(sorted(micro_batch_sizes(plan.batch_size) if sizes is None else sizes))
    best, seconds = plan, evaluate(plan, inf)
    tried = set[_Hosted]()
    for _ in range(_PASSES):
        start = best
        for change in Changes(best, allowed):
            trial = _changed(problem, best, change, tried)
            if trial is None or least_step_seconds(trial, whole_backwards=whole_backwards) >= seconds:
                continue
            if memory_shortfall(trial) > 0:
                continue
            if not trials:
                return best
            trials -= 1
            trial_seconds = evaluate(trial, seconds)
            if trial_seconds * _WORTH < seconds:
                best, seconds = trial, trial_seconds
                if len(best.stages) != len(start.stages):
                    break  # The other changes of this pass name stages by their old positions.
        if best is start:
            break
    return best


def _changed(problem: Problem, plan: Plan, change: Change, tried: set[_Hosted]) -> Plan | None:
    """Return the plan after a change; None if it is impossible, or if the stages were tried on the same devices."""
    before = list(map(Part.of, plan.stages))
    parts = change(before)
    if parts is None:
        return None
    devices = [stage.devices for stage in plan.stages]
    if [part.degree for part in parts] != [part.degree for part in before]:
        if not _placeable(plan):
            return None
        devices = None
    hosted = frozenset(zip(parts, devices or repeat(()), strict=False))
    if hosted in tried:
        return None
    tried.add(hosted)
    order = stage_order(problem.graph, parts)
    if order is None:
        return None
    return assemble(
        problem,
        [parts[stage] for stage in order],
        planner=plan.planner,
        chain=is_chain(plan),
        devices=devices and [devices[stage] for stage in order],
    )


def _placeable(plan: Plan) -> bool:
    """Return whether stages can be put on devices again: all are of one type, and each hosts at most one stage."""
    return not plan.shares_devices and len(plan.cluster.types) == 1
