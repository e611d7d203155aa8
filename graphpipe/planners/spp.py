"""`spp`: sequential pipeline parallelism. It linearises the model, and the stages form a chain.

GraphPipe's evaluation runs PipeDream in this way. The operators are put in one topological order and cut into
intervals. Each interval is a stage with data parallelism, and the schedule is synchronous 1F1B. Stages that do not
feed each other still follow each other, so that the warm-up includes all of them:

    text  t1 t2          stage graph   t1 -> t2 -> v1 -> v2 -> head        (depth 5, where a graph has depth 3)
    image v1 v2  head
"""

from functools import partial

from graphpipe.planners.improve.memory_reliefs import with_reliefs
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.search.search import search
from graphpipe.plans.plan import Plan


def plan_spp(problem: Problem, options: Options) -> Plan:
    """Return the best sequential pipeline found. If none fits in memory, let its stages shard or recompute.

    Raises:
        Infeasible: nothing fits in memory.
    """
    find = partial(search, planner="spp", chains=(True,))
    return with_reliefs(problem, options, "spp", find)


SPP = Planner(
    name="spp",
    plan=plan_spp,
    pipeline="chain",
    honours=frozenset({"micro_batch", "objective", "offload_to"}),
    recomputes=True,
)
