"""`graphpipe`: the graph planner (Jeon et al., GraphPipe, ASPLOS 2025, sections 5 and 6)."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.device_subsets import with_device_subsets
from graphpipe.planners.improve.device_types import typed_plans
from graphpipe.planners.improve.exchange_devices import exchanged
from graphpipe.planners.improve.memory_reliefs import with_reliefs
from graphpipe.planners.improve.mixed_micro_batches import with_mixed_micro_batches
from graphpipe.planners.inference.graph_plans import plan_inference
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.search.search import candidates, distinct
from graphpipe.planners.sharing.share_devices import with_shared_devices
from graphpipe.plans.plan import Plan

_OF_SHARING = ("stages_per_device", "ranked")


def plan_graphpipe(problem: Problem, options: Options) -> Plan:
    """Return the best graph pipeline found.

    1. Decompose the graph into series and parallel parts. Search several forms of it: the graph itself, the graph
       with its edges reversed, and the graph with its branches bundled into fewer and fewer groups, down to a chain.
       If branches differ, light ones also follow heavy ones.
    2. For every form, micro-batch size and least data-parallel degree, search the smallest feasible time per sample
       (the outer search of Algorithm 1) with the dynamic program of `search.dynamic_program` (its recursion).
    3. Rank the partitions found, and some with a larger bottleneck but fewer stages, by step time. Their samples in
       flight come from Algorithm 2. The published planner ranks only by the bottleneck and breaks ties by memory;
       the step time also includes warm-up and drain.
    4. Evaluate partitions of the linearised graph as sequential pipelines too, as the chain planner does, so that the
       result is never worse than its plan.
    5. On unequal links, search with each bandwidth that messages may find (`LinkLevels`). Add the shortest chains that
       DAPPLE's search finds, if the best estimate is a chain (`shortest_chains`). Rank the best candidates together by
       their step time under the caller's schedule, or their best one, after small changes of operators, micro-batch
       sizes, degrees and cuts (`Options.scheduled`, `hill_climb`).
    6. Steps 1-5 treat every device as the slowest and smallest one. On unequal devices, add partitions made for the
       speed and memory of each type (`device_types`), and rank them as in step 5. Then let stages exchange devices
       (`exchange_devices`).
    7. Search plans in which devices host several stages, and keep the best if it is faster (`with_shared_devices`).
    8. If memory is short, repeat 1-7 with more memory and let stages recompute and offload operators until they fit. If
       no plan fits, also repeat them with stages that recompute in full, with replicas that shard the optimizer's
       state, and with both (`memory_reliefs`).
    9. Search again on parts of the cluster that could be faster alone: a node, a site, the devices of a type, and all
       but the last device where their number is hard to fill (`with_device_subsets`).

    With the published objective, step 3 ranks by the bottleneck (of equals, less memory) and step 4 is skipped.

    A problem of inference has its own search (`inference.graph_plans`).

    Raises:
        Infeasible: nothing fits in memory.
    """
    if not problem.trains:
        find = partial(plan_inference, planner="graphpipe")
        return with_device_subsets(problem, find(problem, options), options, find)
    best = with_reliefs(problem, options, "graphpipe", _searched)
    if options.objective == "step" and problem.weights == "flush":
        best = with_device_subsets(problem, best, options, _searched)
    return with_mixed_micro_batches(problem, best, options) if options.mixed_micro_batches else best


def _searched(problem: Problem, options: Options) -> Plan:
    wanted = [getattr(problem, each.name) for each in fields(problem)]
    # How many stages a device may host, and how those plans rank, matters only to `with_shared_devices`.
    wanted += [getattr(options, each.name) for each in fields(options) if each.name not in _OF_SHARING]
    alone = options.remembered.plans(wanted, lambda: _with_own_devices(problem, options))
    most = options.most_at_first
    if fast := [plan for plan in alone if most == inf or options.evaluate(plan) < most]:
        alone = [with_shared_devices(problem, plan, options) for plan in fast]
    return options.best(alone)


def _with_own_devices(problem: Problem, options: Options) -> list[Plan]:
    """Return the best plans in which each device hosts one stage: of unequal devices two, otherwise one."""
    found: list[Plan] = []
    misses: list[Infeasible] = []
    chains = (False,) if options.objective == "bottleneck" else (False, True)
    for bandwidth in problem.cluster.link_levels.bandwidths:
        try:
            assumed = replace(problem, message_bandwidth=bandwidth)
            found += candidates(assumed, options, planner="graphpipe", chains=chains)
        except Infeasible as miss:
            misses.append(miss)
    best = _chosen(found, options, misses)
    if typed := typed_plans(problem, options, best, planner="graphpipe"):
        # Without small changes, other plans are the best after devices are exchanged and shared.
        best = [options.best([*best, *typed]), *_chosen([*found, *typed], options, misses)]
    if not best:
        raise misses[0]
    return distinct(exchanged(plan, options) for plan in best)


def _chosen(plans: Sequence[Plan], options: Options, misses: list[Infeasible]) -> list[Plan]:
    """Return the best plan under the caller's schedule. If there is none, note why."""
    try:
        return [options.chosen(distinct(plans))] if plans else []
    except Infeasible as miss:
        misses.append(miss)
        return []


GRAPHPIPE = Planner(
    name="graphpipe",
    plan=plan_graphpipe,
    pipeline="graph",
    infers=True,
    honours=frozenset({"micro_batch", "mixed_micro_batches", "objective", "stages_per_device", "offload_to", "tensor"}),
    recomputes=True,
    default_schedule="auto",
)
