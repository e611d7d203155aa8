"""`dawnpiper`: cuts between the one that balances computing and the one that balances memory, halved again and again.

    operators              o1 o2 o3 o4 o5 o6 o7 o8        8 stages: first the cut between stages 4 and 5,
    computing balanced           |                        then those between 2 and 3 and between 6 and 7,
    memory balanced                    |                  then the others
    cuts that are tried          |  |  |

Early stages keep more samples in flight, so the cut of equal memory gives them fewer operators. The paper's theorem
says that for two adjacent stages the best cut lies between these two. A stage that does not fit swaps and recomputes.

References:
    Peng et al.: DawnPiper: a memory-scalable pipeline parallel training framework. 2025.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np

from graphpipe.planners.baselines.baseline import Baseline
from graphpipe.planners.baselines.downset_table import DownsetTable
from graphpipe.planners.problem.limits import CUT_SLACK, CUTS
from graphpipe.planners.problem.options import Options
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.problem.planner import Planner
from graphpipe.planners.swapping.chain_stages import Array, ChainStages, Price, PricedStage, partitions_of, worst
from graphpipe.plans.plan import Plan


def plan_dawnpiper(problem: Problem, options: Options) -> Plan:
    """Return the best chain of equal degrees over all micro-batch sizes and degrees.

    The published planner gives every stage one device. Here stages may also be replicated, all equally often.

    Raises:
        Infeasible: nothing fits in memory.
    """
    return Baseline(name="dawnpiper", partitioner=binary_partitions).plan(problem, options)


def binary_partitions(table: DownsetTable, micro_batch: int) -> Iterable[list[Part]]:
    """Return the partition of every degree that divides a micro-batch."""
    return partitions_of(binary_partition, table, micro_batch)


def binary_partition(stages: ChainStages) -> list[PricedStage]:
    """Return the stages that DawnPiper's binary partition finds."""
    partition = _BinaryPartition(stages).split(0, len(stages.table.graph.ops), 0, stages.count, None)
    assert partition is not None, "without a limit something is found"
    return partition


def fitting_partition(stages: ChainStages) -> list[PricedStage] | None:
    """Return the stages that DawnPiper's binary partition finds among those that fit in memory."""
    return _BinaryPartition(stages).split(0, len(stages.table.graph.ops), 0, stages.count, Price(0.0, inf))


@dataclass(frozen=True, slots=True)
class _BinaryPartition:
    stages: ChainStages

    def split(self, first: int, last: int, position: int, count: int, limit: Price | None) -> list[PricedStage] | None:
        """Return `count` stages of the operators from `first` up to `last`, whose first is at a position of the chain.

        None if no price is below the limit.
        """
        if limit is not None and not limit.short_bytes and not self.stages.may_fit(first, last, count):
            return None
        # 1. A single stage shrinks to the memory of a device, by swapping and recomputation.
        if count == 1:
            stage = self.stages.priced(first, last, position)
            return [stage] if limit is None or stage.price < limit else None
        # 2. Otherwise cut between the balanced cuts, with half of the stages on each side.
        half, best = count // 2, None
        cuts = self._cuts(first, last, position, count)
        for least, cut in sorted((self._least(first, cut, last, count), cut) for cut in cuts):
            if limit is not None and Price(0.0, least) >= limit:
                break
            # 3. Split both sides in the same way, and keep the cut whose worst stage is best.
            if (front := self.split(first, cut, position, half, limit)) is None:
                continue
            if (back := self.split(cut, last, position + half, count - half, limit)) is None:
                continue
            price = worst([stage.price for stage in (*front, *back)])
            if limit is None or price < limit:
                best, limit = [*front, *back], price
        return best

    def _least(self, first: int, cut: int, last: int, count: int) -> float:
        """Return the least seconds of the slowest stage if both sides were divided evenly."""
        sums, half = self.stages.computed, count // 2
        return float(max((sums[cut] - sums[first]) / half, (sums[last] - sums[cut]) / (count - half)))

    def _cuts(self, first: int, last: int, position: int, count: int) -> list[int]:
        """Return the cuts between the balanced ones, with some slack, that leave each stage an operator."""
        half = count // 2
        held = np.array(self.stages.in_flight[position : position + count]) / self.stages.degree
        front, back = (
            self.stages.state + float(share.mean()) * self.stages.saved for share in (held[:half], held[half:])
        )
        balanced = [
            _balanced(self.stages.computed, self.stages.computed, first, last, half / count),
            _balanced(front, back, first, last, half / count),
        ]
        low = max(first + half, min(balanced) - CUT_SLACK)
        high = min(last - (count - half), max(balanced) + CUT_SLACK)
        low, high = min(low, last - (count - half)), max(high, first + half)
        return sorted({round(cut) for cut in np.linspace(low, high, min(CUTS, high - low + 1))})


def _balanced(front: Array, back: Array, first: int, last: int, share: float) -> int:
    """Return the cut at which the front has about its share: sums before the cut count as `front`, others as `back`."""
    cuts = np.arange(first, last + 1)
    before, after = (front[cuts] - front[first]) / share, (back[last] - back[cuts]) / (1 - share)
    return first + int(np.argmin(np.abs(before - after)))


DAWNPIPER = Planner(name="dawnpiper", plan=plan_dawnpiper, pipeline="chain", recomputes=True)
