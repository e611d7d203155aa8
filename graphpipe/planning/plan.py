"""`gp.plan`: the best plan that a planner finds for what is asked, verified, scheduled and predicted."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, cast

from graphpipe.cluster import Cluster
from graphpipe.collection_pause import collection_paused
from graphpipe.costs import CostTable
from graphpipe.errors import Infeasible, InvalidInput
from graphpipe.graph import Graph
from graphpipe.planners.budget import Budget, BudgetSpent
from graphpipe.planners.improve.memory_reliefs import has_room
from graphpipe.planners.problem.in_order_bound import least_seconds
from graphpipe.planners.problem.limits import NORMAL, QUICK, SMALL, STAGES_PER_DEVICE, SearchEffort
from graphpipe.planners.problem.options import Objective, Options, endless
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.registry import find_planner
from graphpipe.planning.beside_stages import plan_beside_stages
from graphpipe.planning.best_candidate import BestCandidate
from graphpipe.planning.choose_ranks import plan_with_ranks
from graphpipe.planning.choose_schedule import AS_PLANNED, AUTO, scheduled
from graphpipe.planning.choose_splits import plan_with_splits
from graphpipe.planning.honoured import check_asked
from graphpipe.planning.problem import make_problem, predicted, with_sequence_parallel
from graphpipe.planning.remembered_seconds import RememberedSeconds
from graphpipe.planning.settings import AUTO_SPLIT, PlanSettings, asked
from graphpipe.planning.without_flush import WithoutFlush
from graphpipe.plans.estimates import period_seconds
from graphpipe.plans.plan import Plan
from graphpipe.schedule.schedulers.registry import find_scheduler
from graphpipe.simulator import step_seconds
from graphpipe.simulator.critical_path import applies, overlaps


def plan(
    graph: Graph,
    costs: CostTable,
    cluster: Cluster,
    settings: PlanSettings | None = None,
    *,
    batch_size: int,
    **keywords: Any,
) -> Plan:
    """Return the best plan a planner finds, verified, scheduled and predicted.

    If no plan fits in memory, most planners let stages recompute in the backward (`Stage.recompute`). These are the
    planners with `Planner.recomputes`. GraphPipe's own planners then also try to shard the replicas' state
    (`Stage.state`).

    Args:
        graph: of the model.
        costs: of the graph on the cluster's device types, from `estimate` or `profile`.
        cluster: devices and links.
        settings: what the plan is asked for; None: the defaults.
        batch_size: samples of a mini-batch.
        keywords: fields of `PlanSettings` that differ from `settings`, such as `planner="spp"` or `schedule="1f1b"`.

    Raises:
        Infeasible: no plan fits in memory. The stage that nearly fits and the bytes it lacks are named.
        InvalidInput: an unknown setting, planner, objective or schedule, a batch or micro-batch out of range, costs of
            another graph, loads of unknown operators, operators that cannot be split, settings that exclude each
            other, or a setting that the planner does not follow.
    """
    settings = asked(settings, keywords)
    check_asked(settings, batch_size)
    graph = with_sequence_parallel(graph, asked=settings.sequence_parallel)
    problem = make_problem(graph, costs, cluster, batch_size, settings.sample_loads, balance=settings.balance)
    start = time.perf_counter()
    with collection_paused():
        search = _inference_plan if settings.inference else _training_plan
        best = plan_beside_stages(problem, lambda problem: search(problem, settings))
        return predicted(replace(best, search_seconds=time.perf_counter() - start))


def default_schedule(planner: str, cluster: Cluster, objective: Objective, *, mixed_micro_batches: bool) -> str:
    """Return the schedule that a plan gets if the caller does not name one.

    It is the planner's default (`Planner.default_schedule`), with three exceptions that get `1f1b`: the published
    objective, mixed micro-batch sizes (which run under kFkB), and devices that share cores, as processes on one machine
    do. A shared core always has other work, so filling bubbles does not help, and two halves of a backward cost more
    than a whole one.
    """
    if objective == "step" and not mixed_micro_batches and cluster.cores_per_node is None:
        return find_planner(planner).default_schedule
    return AS_PLANNED


def default_stages_per_device(cluster: Cluster, objective: Objective) -> int:
    """Return how many stages a device may host if the caller does not say.

    It is 4. It is 1 for the published objective, and on clusters on which sharing rarely pays: if devices share cores,
    or cannot move messages while they compute.
    """
    return STAGES_PER_DEVICE if objective == "step" and overlaps(cluster) else 1


def _inference_plan(problem: Problem, settings: PlanSettings) -> Plan:
    latency = settings.objective == "latency"
    evaluate = step_seconds if latency else period_seconds
    options = Options(
        inference_objective="latency" if latency else "throughput",
        evaluate=evaluate,
        micro_batch=settings.micro_batch,
    )
    forwards = replace(problem, trains=False)
    return _with_choices(forwards, settings, lambda chosen: _planned(settings.planner, chosen, options), evaluate)


def _with_choices(
    problem: Problem, settings: PlanSettings, find: Callable[[Problem], Plan], evaluate: Callable[[Plan], float]
) -> Plan:
    """Return the best plan over the splits, and the numbers of devices per replica, that the settings allow."""

    def of_split(split: Problem) -> Plan:
        return plan_with_ranks(split, settings.tensor, find, evaluate)

    return plan_with_splits(problem, settings.split_choice, of_split, evaluate)


def _planned(name: str, problem: Problem, options: Options) -> Plan:
    plan = cast("object", find_planner(name).plan(problem, options))
    if not isinstance(plan, Plan):
        kind = type(plan).__name__
        remedy = "Return what `graphpipe.planners.problem.partition.assemble` returns."
        raise InvalidInput(f"returned {kind}, must return a Plan", where=f"planner '{name}'", remedy=remedy)
    return plan


def _training_plan(problem: Problem, settings: PlanSettings) -> Plan:
    if settings.weights != "flush":
        return _plan_without_flush(problem, settings)
    seconds, budget = RememberedSeconds(lambda plan, _: step_seconds(plan)), settings.budget

    def find(problem: Problem, settings: PlanSettings = settings, *, kicked: bool = True) -> Plan:
        def found(grouped: Problem) -> Plan:
            return _found(grouped, settings, seconds, budget, kicked=kicked)

        return plan_with_ranks(problem, settings.tensor, found, seconds)

    if settings.split != AUTO_SPLIT:
        return plan_with_splits(problem, settings.split_choice, find, seconds)
    # Splits are compared without sharing and without random changes, which take longer to search.
    alone = partial(find, settings=replace(settings, stages_per_device=1), kicked=False)
    best = plan_with_splits(problem, AUTO_SPLIT, alone, seconds)
    chosen = replace(problem, graph=best.graph, costs=best.costs)
    if _most_stages(problem.cluster, settings, NORMAL) == 1:
        leaves = any(effort.kicks_for(chosen.work) for effort in settings.efforts)
        return min(best, find(chosen), key=seconds) if leaves and _follows_effort(settings) else best
    # One more may only pay where a device can host parts and what they feed.
    return plan_with_splits(chosen, AUTO_SPLIT, find, seconds, tried=1)


def _found(
    problem: Problem, settings: PlanSettings, seconds: RememberedSeconds, budget: Budget, *, kicked: bool
) -> Plan:
    """Return the best plan of the searches that the effort names. The first one has all the time that it takes."""

    def timed(plan: Plan) -> float:
        if not seconds.knows(plan):
            budget.check()
        return seconds(plan)

    first, *others = (each if kicked else replace(each, kicks=0) for each in settings.efforts)
    best = _searched(problem, settings, first, seconds)
    if settings.efforts[0] is NORMAL and _follows_effort(settings) and not has_room(best):
        others.append(QUICK)  # Where memory is short, it sometimes ends ahead: of 15 problems once, by 2 %.
    with suppress(BudgetSpent):
        for effort in others:
            budget.check()
            with suppress(Infeasible):
                found = _searched(problem, settings, effort, timed, budget.check)
                best = min(best, found, key=seconds)
    return best


def _follows_effort(settings: PlanSettings) -> bool:
    return "effort" in find_planner(settings.planner).honours


def _searched(
    problem: Problem,
    settings: PlanSettings,
    effort: SearchEffort,
    evaluate: Callable[[Plan], float],
    check_time: Callable[[], None] = endless,
) -> Plan:
    schedule = _schedule(problem.cluster, settings)
    options = _options(problem.cluster, settings, schedule, effort, evaluate, check_time)
    best = _planned(settings.planner, problem, options)
    if schedule == AS_PLANNED or settings.mixed_micro_batches:
        return best
    best = scheduled(best, schedule, evaluate)
    between_sites = len(problem.cluster.every_level) > 2
    if schedule != AUTO or not effort.compared or (problem.work > effort.compared and not between_sites):
        return best
    # Shared devices make some plans the best that are far slower at first: of 20 problems of 5 operators on 3 devices
    # two, by 3 and 5 %. Random changes do so too: a random graph on 12 devices once was 0.2 % behind its own 1F1B.
    # Between sites, 1F1B has other candidates: inception_v3 was 39 % behind it on four nodes. Other large problems, on
    # which `auto` is seldom behind, and by less than 1 %, are compared by a thorough search only.
    most = inf if problem.work <= SMALL else evaluate(best)
    in_order = _options(problem.cluster, settings, AS_PLANNED, effort, evaluate, check_time)
    with suppress(Infeasible):  # Every plan is slower.
        found = find_planner(settings.planner).plan(problem, replace(in_order, most_seconds=most))
        best = min(best, found, key=evaluate)
    return best


def _schedule(cluster: Cluster, settings: PlanSettings) -> str:
    mixed = settings.mixed_micro_batches
    return settings.schedule or default_schedule(
        settings.planner, cluster, _objective(settings), mixed_micro_batches=mixed
    )


def _objective(settings: PlanSettings) -> Objective:
    return "bottleneck" if settings.objective == "bottleneck" else "step"


def _most_stages(cluster: Cluster, settings: PlanSettings, effort: SearchEffort) -> int:
    default = min(default_stages_per_device(cluster, _objective(settings)), effort.most_hosted)
    return settings.stages_per_device or int(default)


def _in_a_v(settings: PlanSettings, schedule: str) -> bool:
    """Return whether a schedule needs devices that host two stages each in a V.

    Raises:
        InvalidInput: the caller allows fewer.
    """
    if schedule == AUTO or not find_scheduler(schedule).in_a_v:
        return False
    if settings.stages_per_device is not None and settings.stages_per_device < 2:
        raise InvalidInput(
            f"is {settings.stages_per_device}, but under '{schedule}' devices host two stages each",
            where="stages_per_device",
            remedy="Leave it out, or choose another schedule.",
        )
    return True


def _options(
    cluster: Cluster,
    settings: PlanSettings,
    schedule: str,
    effort: SearchEffort,
    evaluate: Callable[[Plan], float],
    check_time: Callable[[], None],
) -> Options:
    """Return the options of a planner that trains with a flush."""
    choose = BestCandidate(
        choice=schedule, evaluate=evaluate, micro_batch=settings.micro_batch, quick=applies, effort=effort
    )
    return Options(
        objective=_objective(settings),
        evaluate=evaluate,
        least=least_seconds,
        micro_batch=settings.micro_batch,
        mixed_micro_batches=settings.mixed_micro_batches,
        scheduled=None if settings.mixed_micro_batches else choose,
        ranked=choose.ranked,
        stages_per_device=_most_stages(cluster, settings, effort),
        in_a_v=_in_a_v(settings, schedule),
        offload_to=settings.offload_to,
        splits_backward=schedule == AUTO or find_scheduler(schedule).splits_backward,
        effort=effort,
        check_time=check_time,
    )


def _plan_without_flush(problem: Problem, settings: PlanSettings) -> Plan:
    schedule = settings.schedule or AS_PLANNED
    seconds = RememberedSeconds(lambda plan, _: step_seconds(plan))
    without_flush = WithoutFlush(
        weights=settings.weights, predictor=settings.predictor, evaluate=step_seconds, schedule=schedule
    )
    planner = find_planner(settings.planner)
    options = Options(
        least=least_seconds,
        micro_batch=settings.micro_batch,
        splits_backward=find_scheduler(schedule).splits_backward,
    )
    return _with_choices(problem, settings, lambda chosen: without_flush.plan(planner, chosen, options), seconds)
