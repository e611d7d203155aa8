"""Recomputation as the last resort of a search: stages recompute where no plan fits in memory otherwise."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.baseline import Baseline, degrees_of
from graphpipe.planners.baselines.stage_loads import BOTH, Landscape, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.plans.estimates import memory_shortfall, seconds_per_sample
from graphpipe.plans.plan import Plan


def with_recomputation(problem: Problem, options: Options, planner: str, find: Callable[[Problem], Plan]) -> Plan:
    """Return what a search finds; where nothing fits in memory, the best plan found in which stages recompute.

    Two are compared: what the search finds for stages that all recompute, eased; and the chain of least bottleneck over
    every choice of its stages that recompute. The second is exact: if any sequence of intervals fits, a plan is found.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        find: the search.

    Raises:
        Infeasible: nothing fits even so.
    """
    try:
        return find(problem)
    except Infeasible:
        found: list[Plan] = []
        misses: list[Infeasible] = []
        for attempt in (
            lambda: eased(find(replace(problem, recompute="full"))),
            lambda: Baseline(name=planner, draw=_draw).plan(problem, options),
        ):
            try:
                found.append(attempt())
            except Infeasible as miss:
                misses.append(miss)
        if not found:
            raise misses[0] from None
        return options.best(found)


def eased(plan: Plan) -> Plan:
    """Return the plan without the recomputation that memory does not ask for, the slowest stages first."""
    stages = range(len(plan.stages))
    for at in sorted(stages, key=lambda stage: seconds_per_sample(plan, stage), reverse=True):
        trial = (*plan.stages[:at], replace(plan.stages[at], recompute="none"), *plan.stages[at + 1 :])
        kept = replace(plan, stages=trial)
        if memory_shortfall(kept) <= 0:
            plan = kept
    return plan


def _draw(landscape: Landscape, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(landscape, micro_batch, degrees_of(landscape.problem, micro_batch), policies=BOTH)
    yield landscape.parts(loads.ladder().solve(), micro_batch)
