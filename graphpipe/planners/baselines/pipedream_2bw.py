"""`pipedream-2bw`: equal blocks, width x depth x recomputation: one degree and one policy for all stages.

    depth 3, width 2     o1 o2 o3 | o4 o5 | o6 o7 o8        each block on two devices

The published planner knows models of identical blocks. Here blocks are cut as equal in time as the model allows.
What 2BW is named after, two buffered versions of the weights, makes training asynchronous; this planner's pipelines
run synchronously, so only its partitions are compared.

References:
    Narayanan et al.: Memory-efficient pipeline-parallel DNN training. ICML 2021, section 3.3 (the planner).
"""

from collections.abc import Iterable

from graphpipe.planners.baselines.baseline import Baseline, degrees_of
from graphpipe.planners.baselines.stage_loads import Landscape, StageLoads, uniform_partitions
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.plans.plan import Plan


def plan_pipedream_2bw(problem: Problem, options: Options) -> Plan:
    """Return the best equal partition over all widths, depths and micro-batch sizes, with and without recomputation.

    The time of a stage is the longest of computation, transfers 2 bytes / (w bandwidth) and gradient all-reduce.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="pipedream-2bw", draw=_draw).plan(problem, options)


def _draw(landscape: Landscape, micro_batch: int) -> Iterable[list[Part]]:
    for width in degrees_of(landscape.problem, micro_batch):
        loads = StageLoads(landscape, micro_batch, (width,), all_reduce="longest")
        yield from uniform_partitions(loads)
