"""`piper`: Piper's search over all sequences of convex stages, including stages that mix parts of several branches.

    text   t1 t2 t3        stages   {t1 v1} -> {t2 t3} -> {v2 v3} -> {head}
    image  v1 v2 v3  head  ... a sequential pipeline, in which every stage follows the one before it

The published algorithm on its own inputs, with its two memory variants per node and tensor parallelism, is in
`tests/support/planning/published_piper.py`. Here a stage recomputes entirely or not at all, without tensor parallelism.

References:
    Tarnawski, Narayanan, Phanishayee: Piper: multidimensional planner for DNN parallelization. NeurIPS 2021,
    section 4.
"""

from collections.abc import Iterable

import numpy as np

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import BOTH, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.problem.stage_costs import degrees_of
from graphpipe.plans.plan import Plan


def plan_piper(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline of downset differences whose slowest stage takes the least time per sample.

    The time of a stage is computation, plus 2 bytes / (d bandwidth) for everything it receives and sends, plus its
    share of the gradient all-reduce. Its memory holds the samples in flight at its place in the pipeline. Every stage
    has two variants. The one that recomputes runs its forward twice and keeps only the tensors it received.

    Args:
        problem: graph, costs, cluster and batch.
        options: the caller's.

    Raises:
        Infeasible: nothing fits in memory, or the graph has too many downsets.
    """
    return Baseline(name="piper", partitioner=_partitions, downsets=Downsets.of).plan(problem, options)


def _partitions(downset_table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    degrees = degrees_of(downset_table.problem, micro_batch)
    line = DownsetTable.of(
        downset_table.problem, downset_table.costs, downset_table.graph, Downsets.chain(downset_table.graph)
    )
    bound = StageLoads(line, micro_batch, degrees, traffic="added", policies=BOTH).bottleneck_search().solve()
    # The linearised graph is one of the sequences, so stages slower than its best can be skipped.
    fits = all(cut.fits for cut in bound)
    ceiling = max((cut.seconds for cut in bound), default=np.inf) * (1 + 1e-9) if fits else np.inf
    bottleneck_search = StageLoads(
        downset_table, micro_batch, degrees, traffic="added", policies=BOTH
    ).bottleneck_search(ceiling)
    yield downset_table.parts(bottleneck_search.solve(), micro_batch)


PIPER = Planner(name="piper", plan=plan_piper, pipeline="chain", recomputes=True)
