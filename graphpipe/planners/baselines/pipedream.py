"""`pipedream`: PipeDream's partitioner as GraphPipe's evaluation runs it: linearised graph, synchronous 1F1B.

    operators   o1 o2 | o3 | o4 o5 o6 | o7        cut so that the slowest stage is fastest
    devices      0 1    2     3 4 5     6         replicated if one device is too slow

The published algorithm, over antichain states and levels of the network, is in
`tests/support/planning/published_pipedream.py`.

References:
    Narayanan et al.: PipeDream: generalized pipeline parallelism for DNN training. SOSP 2019, section 3.1.
    Jeon et al.: GraphPipe. ASPLOS 2025, section 7.
"""

from collections.abc import Iterable

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_loads import StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.plans.plan import Plan


def plan_pipedream(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline whose slowest stage takes the least time per sample.

    For every micro-batch size PipeDream's recurrence is solved exactly, with 2 bytes(cut) / (d bandwidth) for the
    activations and gradients over each end of a stage of d devices. If its stages do not fit in memory, the fastest
    stages that fit are returned, because the published memory constraint omits a stage's own copy of the weights.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="pipedream", partitioner=_partitions).plan(problem, options)


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(downset_table, micro_batch, degrees_of(downset_table.problem, micro_batch))
    yield downset_table.parts(loads.bottleneck_search().solve(), micro_batch)


PIPEDREAM = Planner(name="pipedream", plan=plan_pipedream, pipeline="chain")
