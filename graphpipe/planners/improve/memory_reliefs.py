"""Recomputation and sharded optimizer state as a last resort: only if no plan fits in memory otherwise."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

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
from graphpipe.plans.stage import Stage

Search = Callable[[Problem, Options], Plan]


def with_reliefs(problem: Problem, options: Options, planner: str, find: Search) -> Plan:
    """Return the plan of a search. If nothing fits in memory, return the best plan found that needs less memory.

    Compares the search's plans for three problems, after `eased`: all stages recompute, replicas shard the optimizer's
    state, and both. If the search also chooses a schedule, it compares its candidates with and without `eased`, before
    schedules fill the memory with samples in flight. Further candidates are the chains of least bottleneck over every
    choice of stages that recompute, with the optimizer's state whole and sharded. With whole state the chain is exact,
    so a plan is found if any sequence of intervals fits. If nothing is found, replicas shard everything
    (`Stage.state`). This only helps where one parameter is most of a stage.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        find: the search, by a problem and options.

    Raises:
        Infeasible: nothing fits, even with recomputation and sharded state.
    """
    try:
        return find(problem, options)
    except Infeasible:
        misses: list[Infeasible] = []
        for relieved in _reliefs(problem):
            found: list[Plan] = []
            for attempt in _attempts(relieved, options, planner, find):
                try:
                    found.append(attempt())
                except Infeasible as miss:
                    misses.append(miss)
            if found:
                return options.best(found)
        raise misses[0] from None


def _reliefs(problem: Problem) -> Iterator[list[Problem]]:
    """Yield the problems whose plans are compared, the one that needs the least memory first."""
    again = replace(problem, recompute="full")
    if len(problem.cluster.devices) == 1:
        yield [again]
        return
    yield [replace(again, state="optimizer"), again, replace(problem, state="optimizer")]
    yield [replace(again, state="all"), replace(problem, state="all")]


def _attempts(
    problems: Sequence[Problem], options: Options, planner: str, find: Search
) -> Iterator[Callable[[], Plan]]:
    for problem in problems:
        yield partial(_eased_search, find, problem, options)
    for problem in problems:
        if problem.recompute == "full":
            chain = Baseline(name=planner, partitioner=_partitions)
            yield partial(chain.plan, replace(problem, recompute="none"), options)


def _eased_search(find: Search, problem: Problem, options: Options) -> Plan:
    return eased(find(problem, _easing(options)))


def _easing(options: Options) -> Options:
    if (choose := options.scheduled) is None:
        return options

    def scheduled(plans: Sequence[Plan]) -> Plan:
        return choose([*map(eased, plans), *plans])

    return replace(options, scheduled=scheduled)


def eased(plan: Plan) -> Plan:
    """Return the plan without the recomputation and the sharding that memory does not need, the slowest stages first.

    Sharding stays where it saves time.
    """
    stages = range(len(plan.stages))
    slowest_first = sorted(stages, key=lambda stage: seconds_per_sample(plan, stage), reverse=True)
    for at in slowest_first:
        kept = _changed(plan, at, replace(plan.stages[at], recompute="none"))
        if memory_shortfall(kept) <= 0:
            plan = kept
    for at in slowest_first:
        whole = _changed(plan, at, replace(plan.stages[at], state="whole"))
        if seconds_per_sample(whole, at) <= seconds_per_sample(plan, at) and memory_shortfall(whole) <= 0:
            plan = whole
    return plan


def _changed(plan: Plan, at: int, stage: Stage) -> Plan:
    return replace(plan, stages=(*plan.stages[:at], stage, *plan.stages[at + 1 :]))


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(downset_table, micro_batch, degrees_of(downset_table.problem, micro_batch), policies=BOTH)
    yield downset_table.parts(loads.bottleneck_search().solve(), micro_batch)
