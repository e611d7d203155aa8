"""`pipedream-2bw`: equal blocks over width x depth, with one degree and one recomputation policy for all stages.

    depth 3, width 2     o1 o2 o3 | o4 o5 | o6 o7 o8        each block on two devices

The published planner expects models of identical blocks. Here the blocks are as equal in time as the model allows.
2BW keeps two buffered versions of the weights, which makes training asynchronous. Under the weight policy
`double-buffer` this planner counts both versions. Under `flush` its pipelines run synchronously, so that only its
partitions are compared.

References:
    Narayanan et al.: Memory-efficient pipeline-parallel DNN training. ICML 2021, section 3.3 (the planner).
"""

from collections.abc import Iterable

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.stage_loads import StageLoads, uniform_partitions
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.plans.plan import Plan


def plan_pipedream_2bw(problem: Problem, options: Options) -> Plan:
    """Return the best equal partition over all widths, depths and micro-batch sizes, with and without recomputation.

    The time of a stage is the longest of computation, transfers 2 bytes / (w bandwidth) and gradient all-reduce.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="pipedream-2bw", partitioner=_partitions).plan(problem, options)


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    for width in degrees_of(downset_table.problem, micro_batch):
        loads = StageLoads(downset_table, micro_batch, (width,), all_reduce="longest")
        yield from uniform_partitions(loads)


PIPEDREAM_2BW = Planner(name="pipedream-2bw", plan=plan_pipedream_2bw, pipeline="chain", recomputes=True)
