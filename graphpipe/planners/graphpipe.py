"""`graphpipe`: the graph planner (Jeon et al., GraphPipe, ASPLOS 2025, sections 5 and 6)."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from math import inf

from graphpipe.errors import Infeasible
from graphpipe.planners.budget import improved
from graphpipe.planners.cluster_parts import improved_on_own_part
from graphpipe.planners.device_subsets import with_device_subsets
from graphpipe.planners.improve.exchange_devices import exchanged
from graphpipe.planners.improve.memory_reliefs import with_reliefs
from graphpipe.planners.improve.mixed_micro_batches import with_mixed_micro_batches
from graphpipe.planners.inference.graph_plans import plan_inference
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.replicated_groups import with_replicated_groups
from graphpipe.planners.search.device_types import typed_plans
from graphpipe.planners.search.search import candidates, distinct
from graphpipe.planners.sharing.folds import plan_in_a_v
from graphpipe.planners.sharing.random_changes import with_random_changes
from graphpipe.planners.sharing.share_devices import with_shared_devices
from graphpipe.plans.plan import Plan

_OF_SHARING = ("stages_per_device", "ranked")


def plan_graphpipe(problem: Problem, options: Options) -> Plan:
    """Return the best graph pipeline found. Its passes, in their order:

        search    candidates for equal devices, for each bandwidth that messages may find    `candidates`
        types     candidates with a share of the work for each type of device                `typed_plans`
        schedule  the best of these under the caller's schedule, after small changes         `Options.chosen`
        exchange  stages exchange devices that differ in type or in their links              `exchanged`
        share     devices host several stages                                                `with_shared_devices`
        relief    all of these again with other decisions about memory, if it is short       `with_reliefs`
        waits     between sites, the search again as if its schedule filled every wait       `_with_longer_waits`
        parts     all of these again on parts of the cluster that could be faster alone      `with_device_subsets`
        groups    a pipeline inside each node or site, replicated over all of them          `with_replicated_groups`
        random    small changes again, from plans a few random changes away                  `_changed_at_random`
        sizes     stages get micro-batch sizes of their own, if the caller wants it          `with_mixed_micro_batches`

    The published planner is the first pass, ranked by the bottleneck (of equals, less memory) instead of by the step,
    which also includes warm-up and drain. A problem of inference has its own search (`inference.graph_plans`).

    Raises:
        Infeasible: nothing fits in memory.
    """
    if not problem.trains:
        find = partial(plan_inference, planner="graphpipe")
        return with_device_subsets(problem, find(problem, options), options, find)
    plan = with_reliefs(problem, options, "graphpipe", _searched)
    return improved(problem, plan, options, (_with_longer_waits, _on_parts, _changed_at_random, _with_own_sizes))


def _with_longer_waits(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster one from candidates that are estimated without waiting for late messages.

    Between sites, 1F1B with one micro-batch size keeps too few samples in flight for most cuts. Small changes then give
    later stages larger micro-batches, and so earlier ones more samples: vgg16 on two sites was 6 % behind `spp`.
    """
    if len(problem.cluster.every_level) <= 2 or options.splits_backward or options.objective != "step":
        return plan
    patient = replace(options, splits_backward=True, most_seconds=options.evaluate(plan))
    with suppress(Infeasible):  # Every plan is slower.
        return options.best([plan, _searched(problem, patient)])
    return plan


def _on_parts(problem: Problem, plan: Plan, options: Options) -> Plan:
    if options.objective != "step" or problem.weights != "flush" or not options.effort.parts:
        return plan
    plan = with_device_subsets(problem, plan, options, _searched)
    return with_replicated_groups(problem, plan, options)


def _changed_at_random(problem: Problem, plan: Plan, options: Options) -> Plan:
    plan = improved_on_own_part(problem, plan, options, with_random_changes)
    return with_random_changes(problem, plan, options)


def _with_own_sizes(problem: Problem, plan: Plan, options: Options) -> Plan:
    return with_mixed_micro_batches(problem, plan, options) if options.mixed_micro_batches else plan


def _searched(problem: Problem, options: Options) -> Plan:
    if options.in_a_v:
        return plan_in_a_v(problem, options, planner="graphpipe")
    wanted = [getattr(problem, each.name) for each in fields(problem)]
    # How many stages a device may host, and how those plans rank, matters only to `with_shared_devices`.
    wanted += [getattr(options, each.name) for each in fields(options) if each.name not in _OF_SHARING]
    alone = options.remembered.plans(wanted, lambda: _with_own_devices(problem, options))
    most = options.most_at_first
    fast = [plan for plan in alone if most == inf or options.evaluate(plan) < most]
    return options.best([improved(problem, plan, options, (with_shared_devices,)) for plan in fast] or alone)


def _with_own_devices(problem: Problem, options: Options) -> list[Plan]:
    """Return the best plans in which each device hosts one stage: of unequal devices two, otherwise one."""
    misses: list[Infeasible] = []
    found = _candidates(problem, options, misses)
    best = _chosen(found, options, misses)
    if typed := typed_plans(problem, options, best, planner="graphpipe"):
        # Without small changes, other plans are the best after devices are exchanged and shared.
        best = [options.best([*best, *typed]), *_chosen([*found, *typed], options, misses)]
    if not best:
        raise misses[0]
    return distinct(exchanged(plan, options) for plan in best)


def _candidates(problem: Problem, options: Options, misses: list[Infeasible]) -> list[Plan]:
    found: list[Plan] = []
    chains = (False,) if options.objective == "bottleneck" else (False, True)
    for bandwidth in problem.cluster.link_levels.bandwidths:
        try:
            assumed = replace(problem, message_bandwidth=bandwidth)
            found += candidates(assumed, options, planner="graphpipe", chains=chains)
        except Infeasible as miss:
            misses.append(miss)
    return found


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
    honours=frozenset(
        {"micro_batch", "mixed_micro_batches", "objective", "stages_per_device", "offload_to", "tensor", "effort"}
        | {"sequence_parallel"}
    ),
    recomputes=True,
    default_schedule="auto",
)
