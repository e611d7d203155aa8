"""`pipedream`: PipeDream's partitioner as GraphPipe's evaluation runs it: linearised graph, synchronous 1F1B.

    operators   o1 o2 | o3 | o4 o5 o6 | o7        cut where the slowest stage is fastest
    devices      0 1    2     3 4 5     6         replicated where one device is too slow

The published algorithm itself, over antichain states and levels of the network, is in `published_pipedream`.

References:
    Narayanan et al.: PipeDream: generalized pipeline parallelism for DNN training. SOSP 2019, section 3.1.
    Jeon et al.: GraphPipe. ASPLOS 2025, section 7.
"""

from collections.abc import Iterable

from graphpipe.planners.baselines.baseline import Baseline, degrees_of
from graphpipe.planners.baselines.stage_loads import Landscape, StageLoads
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.plans.plan import Plan


def plan_pipedream(problem: Problem, options: Options) -> Plan:
    """Return the sequential pipeline whose slowest stage takes the least time per sample.

    For every micro-batch size PipeDream's recurrence is solved exactly, with 2 bytes(cut) / (d bandwidth) for the
    activations and gradients over either end of a stage of d devices. Where its stages do not fit in memory, the
    fastest that do are taken: the published memory constraint leaves a stage's own copy out.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="pipedream", draw=_draw).plan(problem, options)


def _draw(landscape: Landscape, micro_batch: int) -> Iterable[list[Part]]:
    loads = StageLoads(landscape, micro_batch, degrees_of(landscape.problem, micro_batch))
    yield landscape.parts(loads.ladder().solve(), micro_batch)
