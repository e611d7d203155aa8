"""Recomputation as a last resort: stages recompute only if no plan fits in memory otherwise."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_loads import BOTH, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.plans.device_memory import memory_shortfall
from graphpipe.plans.estimates import seconds_per_sample
from graphpipe.plans.plan import Plan


def with_recomputation(
    problem: Problem, options: Options, planner: str, find: Callable[[Problem, Options], Plan]
) -> Plan:
    """Return the plan of a search. If nothing fits in memory, return the best plan found in which stages recompute.

    Compares two plans. The first is the search's plan for stages that all recompute, after `eased`. If the search also
    chooses a schedule, it compares its candidates with and without `eased`, before schedules fill the memory with
    samples in flight. The second is the chain of least bottleneck over every choice of stages that recompute. It is
    exact, so a plan is found if any sequence of intervals fits.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        find: the search, by a problem and options.

    Raises:
        Infeasible: nothing fits, even with recomputation.
    """
    try:
        return find(problem, options)
    except Infeasible:
        found: list[Plan] = []
        misses: list[Infeasible] = []
        for attempt in (
            lambda: eased(find(replace(problem, recompute="full"), _easing(options))),
            lambda: Baseline(name=planner, partitioner=_partitions).plan(problem, options),
        ):
            try:
                found.append(attempt())
            except Infeasible as miss:
                misses.append(miss)
        if not found:
            raise misses[0] from None
        return options.best(found)


def _easing(options: Options) -> Options:
    if (choose := options.scheduled) is None:
        return options

    def scheduled(plans: Sequence[Plan]) -> Plan:
        return choose([*map(eased, plans), *plans])

    return replace(options, scheduled=scheduled)


def eased(plan: Plan) -> Plan:
    """Return the plan without the recomputation that memory does not need, the slowest stages first."""
    stages = range(len(plan.stages))
    for at in sorted(stages, key=lambda stage: seconds_per_sample(plan, stage), reverse=True):
        trial = (*plan.stages[:at], replace(plan.stages[at], recompute="none"), *plan.stages[at + 1 :])
        kept = replace(plan, stages=trial)
        if memory_shortfall(kept) <= 0:
            plan = kept
    return plan


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(downset_table, micro_batch, degrees_of(downset_table.problem, micro_batch), policies=BOTH)
    yield downset_table.parts(loads.bottleneck_search().solve(), micro_batch)
