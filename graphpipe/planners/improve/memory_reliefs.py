"""Recomputation, offloading and sharded state, where memory is short."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_loads import BOTH, StageLoads
from graphpipe.planners.improve.roomier_plans import Search, enough_seconds, faster_with_memory, roomier_plans
from graphpipe.planners.problem.limits import FAR, NEAR, ROOM
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.planners.problem.too_large import too_large
from graphpipe.planners.swapping.chain_stages import partitions_of
from graphpipe.planners.swapping.dawnpiper import fitting_partition
from graphpipe.planners.swapping.vpipe import repartitioned
from graphpipe.plans.device_memory import memory_shortfall, needed_bytes, stage_shortfall
from graphpipe.plans.estimates import least_step_seconds, seconds_per_sample
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import OTHER_BACKWARDS, Stage


def with_reliefs(problem: Problem, options: Options, planner: str, find: Search) -> Plan:
    """Return the plan of a search; where memory is short, the best plan found that keeps less of its activations.

    Memory is short if nothing fits, or if the plan fills half of a device and a quick search with more memory finds a
    plan that is at least 2 % faster. Then the search repeats as if devices had more memory, and each of its plans
    recomputes and offloads single operators until it fits (`roomier_plans`). A plan that is hardly slower than the one
    with the most memory is returned.

    Otherwise, these are compared with the search's plans for two problems, after `eased`: replicas shard the
    optimizer's state, and all stages recompute besides. If the search also chooses a schedule, it compares its
    candidates with and without `eased`, before schedules fill the memory with samples in flight. If nothing fits at
    first, and no plan comes near the one with the most memory, further candidates are the chains of least bottleneck
    over every choice of stages that recompute, with the optimizer's state whole and sharded. With whole state the
    chain is exact, so a plan is found if any sequence of intervals fits. Then DawnPiper's chains are compared too,
    which balance memory before they swap and recompute operators. vPipe's chains are found quickly, so they are always
    compared. If nothing is found, replicas shard everything (`Stage.state`). This only helps where one parameter is
    most of a stage.

    Each search looks only for plans that can be faster than the best one so far. If it finds none whose stages all
    recompute, the other problem is left out: it needs more memory, and is hardly faster. It is also left out once a
    plan is hardly slower than the one with more memory. Problems whose parameters do not fit (`too_large`) are not
    searched.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        find: the search, by a problem and options.

    Raises:
        Infeasible: nothing fits, even with recomputation and sharded state.
    """
    plans: list[Plan] = []
    misses: list[Infeasible] = []

    def tried(problem: Problem, attempt: Callable[[], Plan]) -> bool:
        try:
            plans.extend(new := [] if too_large(problem) else [attempt()])
        except Infeasible as miss:
            misses.append(miss)
            return False
        return bool(new)

    tried(problem, partial(find, problem, options))
    if misses and options.most_seconds < inf:
        raise misses[0]  # It may be time that is short, and the caller has a plan.
    if plans and (problem.weights != "flush" or has_room(plans[0])):
        return plans[0]
    nothing_fits = not plans
    options = replace(options, effort=replace(options.effort, chains=False))
    roomiest = None
    if problem.weights == "flush" and not too_large(problem):
        roomiest = faster_with_memory(problem, options, find, plans[0] if plans else None)
    if plans and roomiest is None:
        return plans[0]
    enough = -inf if roomiest is None else enough_seconds(options, roomiest)
    if roomiest is not None:
        for plan in roomier_plans(problem, options, find, roomiest, _seconds(options, plans)):
            plans.append(plan)
            if options.evaluate(plan) <= enough:
                return options.best(plans)
    for searched, chained in _reliefs(problem):
        for other in searched:
            faster = replace(options, most_seconds=_seconds(options, plans))
            # Without a plan for the first, which needs the least memory, the others hardly have one.
            if not tried(other, partial(_eased_search, find, other, faster)) and other is searched[0]:
                break
            if _seconds(options, plans) <= enough:
                break
        every = nothing_fits and _seconds(options, plans) > NEAR * enough
        for other, attempt in _chains(chained, planner, every=every):
            tried(other, partial(attempt, replace(options, most_seconds=_seconds(options, plans))))
        if plans:
            return options.best(plans)
    if not too_large(problem):
        raise misses[1] if len(misses) > 1 else misses[0]
    least = next((searched[0] for searched, _ in _reliefs(problem)), problem)
    return find(least, options)  # Its error names the nearest miss.


def _seconds(options: Options, plans: Sequence[Plan]) -> float:
    return min([options.most_seconds, *map(options.evaluate, plans)])


def has_room(plan: Plan) -> bool:
    """Return whether a plan leaves half of every device free."""
    return all(need <= ROOM * plan.cluster.type_of(at).memory_bytes for at, need in needed_bytes(plan).items())


def _reliefs(problem: Problem) -> Iterator[tuple[list[Problem], list[Problem]]]:
    """Yield the problems whose plans are compared, the one that needs the least memory first, and those of the chains.

    Replicas do not shard anything if mini-batches overlap. If a backward reads other
    weights than its forward, stages cannot recompute.
    """
    again = replace(problem, recompute="full")
    if problem.weights != "flush":
        yield from [] if problem.weights in OTHER_BACKWARDS else [([again], [problem])]
        return
    if len(problem.cluster.devices) == 1:
        yield [again], [problem]
        return
    # Stages that recompute and hold their whole state are not searched. With sharded state they fit too, and `eased`
    # makes it whole where that is faster. On the zoo, 33 such searches found nothing that was faster.
    sharded, all_sharded = (replace(problem, state=state) for state in ("optimizer", "all"))
    yield [replace(sharded, recompute="full"), sharded], [sharded, problem]
    yield [replace(all_sharded, recompute="full"), all_sharded], [all_sharded]


def _chains(
    problems: Sequence[Problem], planner: str, *, every: bool
) -> Iterator[tuple[Problem, Callable[[Options], Plan]]]:
    """Yield the searches of chains to try, by their options, and the problem of each: all, or only vPipe's."""
    for problem in problems:
        if every:
            yield problem, partial(_chain, _partitions, problem, planner)
        if problem.weights == "flush" and problem.state == "whole":
            for find_chain in (repartitioned, fitting_partition) if every else (repartitioned,):
                yield problem, partial(_chain, partial(partitions_of, find_chain), problem, planner)


def _chain(partitions: Callable[..., Iterable[list[Part]]], problem: Problem, planner: str, options: Options) -> Plan:
    partitioner = partial(partitions, most_seconds=options.most_seconds)
    return Baseline(name=planner, partitioner=partitioner).plan(problem, options)


def _eased_search(find: Search, problem: Problem, options: Options) -> Plan:
    return eased(find(problem, replace(_easing(options), most_seconds=FAR * options.most_seconds)))


def _easing(options: Options) -> Options:
    """Return options under which a schedule is only chosen among plans that can be fast enough, after `eased`.

    Where devices may share stages, a slow plan keeps its schedule, because sharing may still shorten its step.

    Raises of `scheduled`:
        Infeasible: no plan can be fast enough.
    """
    if (choose := options.scheduled) is None:
        return options

    def scheduled(plans: Sequence[Plan]) -> Plan:
        both = [*map(eased, plans), *plans]
        least = partial(least_step_seconds, whole_backwards=not options.splits_backward)
        if fast := [plan for plan in both if least(plan) < NEAR * options.most_seconds]:
            return choose(fast)
        if options.stages_per_device > 1:
            return options.best(both)
        raise Infeasible(f"every plan takes at least {options.most_seconds} seconds")

    return replace(options, scheduled=scheduled)


def eased(plan: Plan) -> Plan:
    """Return the plan without the recomputation and the sharding that memory does not need, the slowest stages first.

    Sharding stays where it saves time.
    """
    stages = range(len(plan.stages))
    slowest_first = sorted(stages, key=lambda stage: seconds_per_sample(plan, stage), reverse=True)
    for at in slowest_first:
        plan = _if_it_fits(plan, at, replace(plan.stages[at], recompute="none")) or plan
    for at in slowest_first:
        whole = _if_it_fits(plan, at, replace(plan.stages[at], state="whole"))
        if whole is not None and seconds_per_sample(whole, at) <= seconds_per_sample(plan, at):
            plan = whole
    return plan


def _if_it_fits(plan: Plan, at: int, stage: Stage) -> Plan | None:
    """Return the plan with another stage; None if it is the same stage, or if the plan then lacks memory."""
    # A stage that does not even fit alone is found quickly.
    if stage == plan.stages[at] or stage_shortfall(plan, stage) > 0:
        return None
    changed = _changed(plan, at, stage)
    return changed if memory_shortfall(changed) <= 0 else None


def _changed(plan: Plan, at: int, stage: Stage) -> Plan:
    return replace(plan, stages=(*plan.stages[:at], stage, *plan.stages[at + 1 :]))


def _partitions(downset_table: DownsetTable, micro_batch: int, *, most_seconds: float) -> Iterable[list[Part]]:
    problem = downset_table.problem
    loads = StageLoads(downset_table, micro_batch, degrees_of(problem, micro_batch), policies=BOTH)
    # The slowest stage computes all samples, so slower stages are in no faster plan.
    most = most_seconds / problem.batch_size
    if loads.least_bottleneck() > most:
        return
    cuts = loads.bottleneck_search(most)
    # Beside a plan that fits, the nearest miss tells nothing.
    if (most == inf or cuts.may_fit) and (parts := downset_table.parts(cuts.solve(), micro_batch)):
        yield parts
