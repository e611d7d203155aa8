"""`gpipe`: GPipe's blocks of equal time, and its schedule: all forwards, then all backwards.

    operators   o1 o2 o3 | o4 o5 | o6 o7 o8 o9        S blocks, the slowest as fast as possible
    devices       0 1      2 3        4 5             the same data-parallel degree everywhere

References:
    Huang et al.: GPipe: efficient training of giant neural networks using pipeline parallelism. NeurIPS 2019.
    Kim et al.: torchgpipe: on-the-fly pipeline parallelism for training giant models. 2020, section 3 (balancing).
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


def plan_gpipe(problem: Problem, options: Options) -> Plan:
    """Return the best block partition over all micro-batch sizes and degrees.

    Blocks are balanced only by computing time, as in torchgpipe, and every stage keeps the mini-batch in flight. If
    the best blocks do not fit in memory, blocks that all recompute, as in GPipe, are tried too.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="gpipe", partitioner=_partitions, schedule="gpipe").plan(problem, options)


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    for degree in degrees_of(downset_table.problem, micro_batch):
        loads = StageLoads(
            downset_table, micro_batch, (degree,), traffic="none", all_reduce="none", whole_batch_held=True
        )
        yield from uniform_partitions(loads)


GPIPE = Planner(name="gpipe", plan=plan_gpipe, pipeline="chain", recomputes=True, own_schedule="gpipe")
