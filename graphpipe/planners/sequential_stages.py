"""Compare a plan with sequential pipelines of Piper and DAPPLE, where the search of a graph may miss them."""

from dataclasses import replace
from functools import partial

from graphpipe.errors import Infeasible
from graphpipe.planners.baselines.dapple import plan_dapple
from graphpipe.planners.baselines.piper import plan_piper
from graphpipe.planners.fewer_devices import is_regular
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.search.partition_search import FEW_DOWNSETS, SHORTEST
from graphpipe.plans.plan import Plan


def with_sequential_stages(problem: Problem, plan: Plan, options: Options) -> Plan:
    """Return the plan, or a faster sequential pipeline, after small changes.

    1. Piper's stages are any differences of downsets, which the forms of a graph do not contain.
    2. DAPPLE's are the shortest step with the plan's micro-batch size. The search leaves them out where it estimates
       that a graph of stages is faster. The estimate can be too low, because it ignores that messages wait.

    Both were only seen to be faster where the devices are not a power of two in equal nodes. Elsewhere, and for large
    problems, the time is saved.

    Args:
        problem: graph, costs, cluster and batch.
        plan: the best plan so far.
        options: the caller's.
    """
    if len(problem.graph.ops) * len(problem.cluster.devices) > SHORTEST or is_regular(problem.cluster):
        return plan
    best = options.under_schedule(plan)
    seconds = options.evaluate(best)
    sizes = {stage.micro_batch for stage in plan.stages}
    searches = [partial(plan_piper, options=options, most_downsets=FEW_DOWNSETS)]
    if len(sizes) == 1:
        searches.insert(0, partial(plan_dapple, options=replace(options, micro_batch=sizes.pop())))
    for find in searches:
        try:
            sequential = options.under_schedule(find(problem))
        except Infeasible:  # Too little memory, or too many downsets.
            continue
        if (found_seconds := options.evaluate(sequential)) < seconds:
            best, seconds = replace(sequential, planner=plan.planner), found_seconds
    return best
