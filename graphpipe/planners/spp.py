"""`spp`: the chain planner. The model is linearised and its stages form a sequential pipeline.

This is how GraphPipe's evaluation runs PipeDream: operators in one topological order, cut into intervals, every
interval a stage with data parallelism, synchronous 1F1B. Stages that do not feed each other still follow each
other, so that the warm-up counts all of them:

    text  t1 t2          stage graph   t1 -> t2 -> v1 -> v2 -> head        (depth 5, where a graph has depth 3)
    image v1 v2  head
"""

from functools import partial

from graphpipe.planners.improve.recompute_when_short import with_recomputation
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.search.search import search
from graphpipe.plans.plan import Plan


def plan_spp(problem: Problem, options: Options) -> Plan:
    """Return the best sequential pipeline found; where none fits in memory, one whose stages recompute.

    Raises:
        Infeasible: nothing fits in memory.
    """
    find = partial(search, options=options, planner="spp", chains=(True,))
    return with_recomputation(problem, options, "spp", find)
