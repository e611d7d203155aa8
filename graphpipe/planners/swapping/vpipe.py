"""`vpipe`: swap, recompute and repartition in turns: blocks move from the slowest stage to its faster neighbour.

    o1 o2 o3 | o4 o5 | o6 o7        the first stage is the slowest, because it recomputes most
    o1 o2 | o3 o4 o5 | o6 o7        its last block moves on, and both stages decide anew what they swap and recompute

References:
    Zhao et al.: vPipe: a virtualized acceleration system for achieving efficient and scalable pipeline parallel DNN
    training. IEEE TPDS 33 (3), 2022.
"""

from functools import partial

import numpy as np

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.swapping.chain_stages import ChainStages, PricedStage, partitions_of, worst
from graphpipe.plans.plan import Plan


def plan_vpipe(problem: Problem, options: Options) -> Plan:
    """Return the best chain of equal degrees over all micro-batch sizes and degrees.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="vpipe", partitioner=partial(partitions_of, repartitioned)).plan(problem, options)


def repartitioned(stages: ChainStages) -> list[PricedStage]:
    """Return the stages after all moves that help."""
    # 1. Begin with stages of equal computing time.
    cuts = _even_cuts(stages)
    # 2. Every stage decides what it swaps and recomputes (`ChainStages.priced`).
    # 3. Move a block of the slowest stage to a neighbour, until that no longer helps. First move large blocks.
    block = max(1, cuts[-1] // (4 * stages.count))
    while block:
        moved = _moved(stages, cuts, block)
        block, cuts = (block, moved) if moved else (block // 2, cuts)
    return stages.all_priced(cuts)


def _even_cuts(stages: ChainStages) -> list[int]:
    operators = len(stages.table.graph.ops)
    goals = stages.computed[-1] * np.arange(1, stages.count) / stages.count
    cuts = [0, *(int(np.argmin(np.abs(stages.computed - goal))) for goal in goals), operators]
    for at in range(1, stages.count):
        cuts[at] = max(cuts[at], cuts[at - 1] + 1)
    for at in range(stages.count - 1, 0, -1):
        cuts[at] = min(cuts[at], cuts[at + 1] - 1)
    return cuts


def _moved(stages: ChainStages, cuts: list[int], block: int) -> list[int] | None:
    """Return the cuts after a block of the slowest stage has moved to its faster neighbour, or else to the other one.

    None if the slower of the two stages would not become faster.
    """
    priced = stages.all_priced(cuts)
    slowest = max(range(stages.count), key=lambda at: priced[at].price)
    neighbours = [at for at in (slowest - 1, slowest + 1) if 0 <= at < stages.count]
    for other in sorted(neighbours, key=lambda at: priced[at].price):
        trial = list(cuts)
        trial[max(slowest, other)] += block if other < slowest else -block
        if cuts[slowest + 1] - cuts[slowest] <= block:
            continue
        pair = [stages.priced(trial[at], trial[at + 1], at).price for at in (slowest, other)]
        if worst(pair) < priced[slowest].price:
            return trial
    return None


VPIPE = Planner(name="vpipe", plan=plan_vpipe, pipeline="chain", recomputes=True)
