"""`graphpipe`: the graph planner (Jeon et al., GraphPipe, ASPLOS 2025, sections 5 and 6)."""

from graphpipe.errors import Infeasible
from graphpipe.planners.improve.device_types import exchanged, typed_plans
from graphpipe.planners.improve.mixed_micro_batches import with_mixed_micro_batches
from graphpipe.planners.improve.recompute_when_short import with_recomputation
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.search.search import search
from graphpipe.plans.plan import Plan


def plan_graphpipe(problem: Problem, options: Options) -> Plan:
    """Return the best graph pipeline found.

    1. The graph is decomposed into series and parallel parts, and swept as it is, turned around, and with its
       branches bundled into fewer and fewer groups, down to a chain.
    2. For every form, micro-batch size and least data-parallel degree, the smallest feasible time per sample is
       searched (the outer search of Algorithm 1) with the partition programme of `frontier` (its recursion).
    3. The partitions found, and some with a relaxed bottleneck but fewer stages, get their samples in flight from
       Algorithm 2 and are ranked by step time. The published planner ranks by the bottleneck alone and breaks ties by
       memory; ranking by step time counts warm-up and drain too.
    4. Partitions of the linearised graph are judged as sequential pipelines too, as the chain planner judges them, so
       the result is never worse than its plan.
    5. Steps 1-4 see every device as the slowest and smallest. On unequal devices, partitions made for each type's own
       speed and memory are candidates too (`device_types`).
    6. If the caller leaves the schedule open (`Options.scheduled`), the best candidates are ranked by what they reach
       under the schedule that suits them, after small changes of their stages and micro-batch sizes (`plan.refine`).
    7. Where no plan fits in memory, 1-6 search again for stages that recompute what they computed (`plan.recompute`).

    With the published objective, 3 ranks by the bottleneck (of equals, less memory) and 4 is left out.

    Raises:
        Infeasible: nothing fits in memory.
    """
    best = with_recomputation(problem, options, "graphpipe", lambda given: _searched(given, options))
    return with_mixed_micro_batches(problem, best, options) if options.mixed_micro_batches else best


def _searched(problem: Problem, options: Options) -> Plan:
    finalists: list[Plan] = []
    misses: list[Infeasible] = []
    try:
        chains = (False,) if options.objective == "bottleneck" else (False, True)
        finalists.append(search(problem, options, planner="graphpipe", chains=chains))
    except Infeasible as miss:
        misses.append(miss)
    finalists += typed_plans(problem, options, finalists, planner="graphpipe")
    if not finalists:
        raise misses[0]
    return exchanged(options.best(finalists), options)
