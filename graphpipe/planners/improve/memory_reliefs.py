"""Recomputation, offloading and sharded state, where memory is short."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_loads import BOTH, StageLoads
from graphpipe.planners.improve.relieved import relieved
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem, assemble, is_chain
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.plans.device_memory import memory_shortfall, needed_bytes
from graphpipe.plans.estimates import seconds_per_sample
from graphpipe.plans.plan import Plan
from graphpipe.plans.stage import Stage

_FULL = 0.5
"""Share of a device's memory up to which a plan had room for other choices."""
_GAIN = 0.98
"""Share of a step that a plan with more memory must take for memory to count as short."""
_ROOMIER = (1.3, 1.7, 3.0)
"""How many times the memory of the devices searches assume."""

Search = Callable[[Problem, Options], Plan]


def with_reliefs(problem: Problem, options: Options, planner: str, find: Search) -> Plan:
    """Return the plan of a search; where memory is short, the best plan found that keeps less of its activations.

    Memory is short if nothing fits, or if the plan fills half of a device and a quick search with more memory finds a
    plan that is at least 2 % faster. Then the search repeats as if devices had more memory, and each of its plans
    recomputes and offloads single operators until it fits (`relieved`).

    These are compared with the search's plans for three problems, after `eased`: all stages recompute, replicas shard
    the optimizer's state, and both. If the search also chooses a schedule, it compares its candidates with and without
    `eased`, before schedules fill the memory with samples in flight. If nothing fits otherwise, further candidates are
    the chains of least bottleneck over every choice of stages that recompute, with the optimizer's state whole and
    sharded. With whole state the chain is exact, so a plan is found if any sequence of intervals fits. If nothing is
    found, replicas shard everything (`Stage.state`). This only helps where one parameter is most of a stage.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.
        planner: name written into the plan.
        find: the search, by a problem and options.

    Raises:
        Infeasible: nothing fits, even with recomputation and sharded state.
    """
    found: list[Plan] = []
    misses: list[Infeasible] = []
    try:
        found.append(find(problem, options))
        if problem.weights != "flush" or _has_room(found[0]) or not _memory_gains(problem, options, find, found[0]):
            return found[0]
    except Infeasible as miss:
        misses.append(miss)
    found += [] if problem.weights != "flush" else _roomier_plans(problem, options, find)
    for relieved_problems in _reliefs(problem):
        for attempt in _attempts(relieved_problems, options, planner, find, chains=bool(misses)):
            try:
                found.append(attempt())
            except Infeasible as miss:
                misses.append(miss)
        if found:
            return options.best(found)
    raise misses[1] if len(misses) > 1 else misses[0]


def _has_room(plan: Plan) -> bool:
    """Return whether a plan leaves half of every device free."""
    return all(need <= _FULL * plan.cluster.type_of(at).memory_bytes for at, need in needed_bytes(plan).items())


def _memory_gains(problem: Problem, options: Options, find: Search, plan: Plan) -> bool:
    """Return whether more memory leads to a faster plan, as far as a search with one stage per device shows."""
    roomy = _with_memory(problem, _ROOMIER[-1])
    quick = replace(options, scheduled=None, stages_per_device=1)
    return options.evaluate(find(roomy, quick)) <= _GAIN * options.evaluate(plan)


def _with_memory(problem: Problem, times: float) -> Problem:
    types = tuple(replace(kind, memory_bytes=kind.memory_bytes * times) for kind in problem.cluster.device_types)
    return replace(problem, cluster=replace(problem.cluster, device_types=types))


def _roomier_plans(problem: Problem, options: Options, find: Search) -> Iterator[Plan]:
    """Yield the plans of searches with more memory, fitted into the memory that there is."""
    seen: list[tuple[Part, ...]] = []
    for times in _ROOMIER:
        try:
            found = find(_with_memory(problem, times), replace(options, scheduled=None))
        except Infeasible:
            continue
        parts = tuple(map(Part.of, found.stages))
        if parts in seen:
            continue
        seen.append(parts)
        if fitting := _fitting(problem, replace(found, cluster=problem.cluster)):
            best = options.best(fitting)
            yield best if options.scheduled is None else options.scheduled([best])


def _fitting(problem: Problem, plan: Plan) -> list[Plan]:
    """Return the plan with decisions that let it fit, at its micro-batch sizes or the largest halves that fit."""
    while not (found := relieved(plan)):
        parts = [replace(part, micro_batch=part.micro_batch // 2) for part in map(Part.of, plan.stages)]
        if any(2 * half.micro_batch != stage.micro_batch for half, stage in zip(parts, plan.stages, strict=True)):
            return []
        if any(part.micro_batch % part.degree for part in parts) or _whole_batch(plan):
            return []
        devices = [stage.devices for stage in plan.stages]
        plan = assemble(problem, parts, planner=plan.planner, chain=is_chain(plan), devices=devices)
    return found


def _whole_batch(plan: Plan) -> bool:
    return any(op.whole_batch for op in plan.graph.ops)


def _reliefs(problem: Problem) -> Iterator[list[Problem]]:
    """Yield the problems whose plans are compared, the one that needs the least memory first.

    Replicas do not shard anything if mini-batches overlap. Predicted weights exclude recomputation.
    """
    again = replace(problem, recompute="full")
    if problem.weights != "flush":
        yield from [] if problem.weights == "predict" else [[again]]
        return
    if len(problem.cluster.devices) == 1:
        yield [again]
        return
    yield [replace(again, state="optimizer"), again, replace(problem, state="optimizer")]
    yield [replace(again, state="all"), replace(problem, state="all")]


def _attempts(
    problems: Sequence[Problem], options: Options, planner: str, find: Search, *, chains: bool
) -> Iterator[Callable[[], Plan]]:
    for problem in problems:
        yield partial(_eased_search, find, problem, options)
    for problem in problems:
        if problem.recompute == "full" and chains:
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
