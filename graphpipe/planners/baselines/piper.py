"""`piper`: Piper's search over every sequence of convex stages, also those that mix pieces of several branches.

    text   t1 t2 t3        stages   {t1 v1} -> {t2 t3} -> {v2 v3} -> {head}
    image  v1 v2 v3  head  ... a sequential pipeline: every stage follows the one before it

The published algorithm on its own inputs, with its two memory variants per node and tensor parallelism, is in
`published_piper`. Here a stage recomputes as a whole or not at all, and there is no tensor parallelism.

References:
    Tarnawski, Narayanan, Phanishayee: Piper: multidimensional planner for DNN parallelization. NeurIPS 2021,
    section 4.
"""

from collections.abc import Iterable

import numpy as np

from graphpipe.planners.baselines.baseline import Baseline, degrees_of
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_loads import BOTH, Landscape, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.plans.plan import Plan


def plan_piper(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline of downset differences whose slowest stage takes the least time per sample.

    The time of a stage is computation, plus 2 bytes / (d bandwidth) for everything it receives and sends, plus its
    share of the gradient all-reduce; memory is counted with the samples in flight of its place in the pipeline. Of
    every stage there are two variants: one that recomputes takes its forward longer and keeps only what it received.

    Raises:
        Infeasible: nothing fits in memory, or the graph has more than 40,000 downsets.
    """
    return Baseline(name="piper", draw=_draw, downsets=Downsets.of).plan(problem, options)


def _draw(landscape: Landscape, micro_batch: int) -> Iterable[list[Part]]:
    degrees = degrees_of(landscape.problem, micro_batch)
    line = Landscape.of(landscape.problem, landscape.costs, landscape.graph, Downsets.chain(landscape.graph))
    bound = StageLoads(line, micro_batch, degrees, traffic="added", policies=BOTH).ladder().solve()
    # The linearised graph is one of the sequences: what is slower than its best need not be looked at.
    fits = all(cut.fits for cut in bound)
    ceiling = max((cut.seconds for cut in bound), default=np.inf) * (1 + 1e-9) if fits else np.inf
    ladder = StageLoads(landscape, micro_batch, degrees, traffic="added", policies=BOTH).ladder(ceiling)
    yield landscape.parts(ladder.solve(), micro_batch)
