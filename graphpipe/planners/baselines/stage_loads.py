"""Time and memory of the baseline planners' stages, computed for all nested pairs of downsets at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import StageMemory
from graphpipe.planners.baselines.downset_table import DownsetTable, Stages
from graphpipe.planners.baselines.stage_cuts import UNLIMITED, BottleneckSearch, Counts, StageCuts
from graphpipe.planners.problem.partition import Part
from graphpipe.planners.problem.stage_costs import far_bandwidth, smallest_memory_bytes, update_seconds_per_byte
from graphpipe.plans.in_flight import most_in_flight_of

Array = NDArray[np.float64]
Counting = Literal["none", "longest", "added"]
"""How transfers or the all-reduce count: not at all, as a maximum with the other times, or added to them."""
Policy = Literal["none", "full"]
BOTH: tuple[Policy, ...] = ("none", "full")


@dataclass(frozen=True, slots=True)
class StageLoads:
    """The cuts of all downsets for one micro-batch size, with the costs that one planner counts."""

    downset_table: DownsetTable
    micro_batch: int
    degrees: tuple[int, ...]
    """Data-parallel degrees that stages may have."""
    traffic: Counting = "longest"
    """How transfers of activations and their gradients count."""
    all_reduce: Counting = "added"
    """How the all-reduce of the weight gradients counts, spread over the mini-batch."""
    whole_batch_held: bool = False
    """Whether the schedule keeps the whole mini-batch in flight at every stage."""
    policies: tuple[Policy, ...] = ()
    """Policies of recomputation that stages may have, the cheaper one first; empty: the policy of the problem."""

    def bottleneck_search(self, ceiling: float = np.inf) -> BottleneckSearch:
        """Return the search over all cuts whose stage takes at most `ceiling` seconds per sample."""
        table = self.downset_table
        policies: tuple[Policy, ...] = self.policies or (table.problem.recompute,)
        compute: list[tuple[Policy, Array]] = [
            (policy, self._summed(partial(self._compute, again=policy == "full"))) for policy in policies
        ]
        reduce, state = self._summed(self._reduce), self._summed(self._state)
        cuts = [
            cuts
            for stages in table.stages
            for cuts in self._cuts_of_all_policies(stages, compute, reduce, state, ceiling)
        ]
        return BottleneckSearch(cuts, len(table.problem.cluster.devices))

    def least_bottleneck(self) -> float:
        """Return the seconds per sample of each stage if all devices were always busy. No stages can be faster."""
        again = self.downset_table.problem.recompute == "full" and not self.policies
        busy = [(self._compute(degree, again) + self._reduce(degree)) * degree for degree in self.degrees]
        return float(np.min(busy, axis=0).sum()) / len(self.downset_table.problem.cluster.devices)

    def _summed(self, seconds_of: Callable[[int], Array]) -> Array:
        """Return, of shape [downsets, degrees], the sums over operators at every degree."""
        return np.stack([self.downset_table.downsets.members @ seconds_of(degree) for degree in self.degrees], axis=1)

    def _compute(self, degree: int, again: bool) -> Array:
        """Return seconds per sample of each operator's forward, once or `again`, and backward, on the slowest type."""
        table, size = self.downset_table, self.micro_batch
        kinds = sorted({device.type for device in table.problem.cluster.devices})
        by_kind = [table.costs.seconds(kind, size / degree) for kind in kinds]
        seconds = [np.sum((seconds[0], *seconds) if again else seconds, axis=0) for seconds in by_kind]
        return np.max(seconds, axis=0)[table.positions] / size

    def _reduce(self, degree: int) -> Array:
        """Return seconds per sample of each operator's share of the update: all-reduce and optimizer step."""
        table = self.downset_table
        per_byte = update_seconds_per_byte(table.problem, degree) / table.problem.batch_size
        return table.costs.op_bytes.trainable[table.positions] * per_byte

    def _state(self, degree: int) -> Array:
        """Return the bytes of parameters, gradients and optimizer state of each operator on each replica."""
        table = self.downset_table
        return table.costs.op_bytes.held(table.problem.state, degree)[table.positions]

    def _cuts_of_all_policies(
        self, stages: Stages, compute: Sequence[tuple[Policy, Array]], reduce: Array, state: Array, ceiling: float
    ) -> list[StageCuts]:
        """Return the cuts of all policies by larger downset; those that recompute only if memory may be short
        otherwise."""
        (first, seconds), *others = compute
        cuts = self._cuts(stages, seconds, reduce, state, ceiling, first)
        if not others:
            return cuts
        needed = min(len(self.downset_table.graph.ops), self.downset_table.devices)
        for number, (_, group) in enumerate(stages.groups):
            if (cuts[number].limit < needed).any():
                more = [self._cuts(group, seconds, reduce, state, ceiling, policy)[0] for policy, seconds in others]
                cuts[number] = StageCuts.concatenate([cuts[number], *more])
        return cuts

    def _cuts(
        self, stages: Stages, compute: Array, reduce: Array, state: Array, ceiling: float, policy: Policy
    ) -> list[StageCuts]:
        """Return the cuts of stages that are fast enough, by larger downset."""
        uppers = np.unique(stages.upper)
        at, below = stages.upper, stages.lower
        seconds = _counted(compute[at] - compute[below], reduce[at] - reduce[below], self.all_reduce)
        promising = np.flatnonzero((seconds <= ceiling).any(axis=1))
        stages, seconds = stages.only(promising), seconds[promising]
        seconds = _counted(seconds, self._traffic(stages), self.traffic)
        limit = self._limits(stages, state[stages.upper] - state[stages.lower], policy)
        row, column = np.nonzero(seconds <= ceiling)
        devices, recomputes = np.array(self.degrees)[column], np.full(len(row), policy == "full")
        one = np.ones(len(row), np.int32)
        cuts = StageCuts(stages.lower[row], devices, seconds[row, column], one, limit[row, column], recomputes)
        ends = np.searchsorted(stages.upper[row], uppers, side="right")
        return [cuts.only(slice(start, end)) for start, end in pairwise([0, *ends.tolist()])]

    def _traffic(self, stages: Stages) -> Array:
        """Return, of shape [stages, degrees], seconds per sample of moving activations and their gradients."""
        table = self.downset_table
        if self.traffic == "longest":  # All bytes that cross the wider end, including those that pass the stage by.
            count = np.maximum(table.cut_bytes[stages.upper], table.cut_bytes[stages.lower])
        else:
            members = table.downsets.members
            passing = [table.reads[at].bytes_read(members[group.lower]) for at, group in stages.groups]
            count = stages.received + table.cut_bytes[stages.lower] - np.concatenate([*passing, np.zeros(0)])
        return 2 * count[:, None] / np.array(self.degrees) / far_bandwidth(table.problem)

    def _limits(self, stages: Stages, state: Array, policy: Policy) -> Counts:
        """Return, of shape [stages, degrees], the largest count of stages at which the stage fits."""
        table, batch = self.downset_table, self.downset_table.problem.batch_size
        samples = self.micro_batch / np.array(self.degrees)
        by_forward = (table.saved_by_forward[stages.upper] - table.saved_by_forward[stages.lower])[:, None] / samples
        memory = StageMemory.summed(
            state,
            (table.saved_bytes[stages.upper] - table.saved_bytes[stages.lower])[:, None] + by_forward,
            recompute=policy,
            samples=samples,
            received=stages.received[:, None],
            temporary=self._temporaries(stages) if table.costs.op_bytes.has_temporaries else 0.0,
        )
        spare, kept = (
            smallest_memory_bytes(table.problem) - memory.total(0.0),
            memory.per_sample / np.array(self.degrees),
        )
        if table.problem.weights != "flush":
            return self._limits_without_flush(spare, kept, self._weights(stages))
        samples = np.where(spare < 0, 0.0, np.full(kept.shape, float(UNLIMITED)))
        np.divide(spare, kept, out=samples, where=(spare >= 0) & (kept > spare / UNLIMITED))
        samples = np.floor(samples * (1 + 1e-9))
        whole = self.whole_batch_held or table.before_tail
        fewer = np.zeros_like(samples) if whole else np.maximum(samples // self.micro_batch, 0)
        return np.where(samples >= batch, UNLIMITED, fewer).astype(np.int32)

    def _weights(self, stages: Stages) -> Array:
        """Return, of shape [stages], the bytes of a version of a stage's weights."""
        trained = self.downset_table.costs.op_bytes.trainable[self.downset_table.positions]
        held = self.downset_table.downsets.members @ trained
        return held[stages.upper] - held[stages.lower]

    def _limits_without_flush(self, spare: Array, kept: Array, weights: Array) -> Counts:
        """Return the same as `_limits` if mini-batches overlap: a longer way back needs more versions of the weights.

        A stage from which n stages lead to the end has n micro-batches in flight, as far as the policy allows.
        """
        problem, size = self.downset_table.problem, self.micro_batch
        counts = range(1, 1 + min(len(self.downset_table.graph.ops), self.downset_table.devices))
        limit = np.zeros(spare.shape, np.int32)
        for count in counts:
            held = int(min(count * size, most_in_flight_of(problem.weights, problem.batch_size, size)))
            older = problem.versions(held, size) - 1
            fits = held * kept + older * weights[:, None] <= spare * (1 + 1e-9)
            limit = np.where(fits & (limit == count - 1), count if count < counts[-1] else UNLIMITED, limit)
        return limit

    def _temporaries(self, stages: Stages) -> Array:
        """Return, of shape [stages, degrees], the temporary bytes of a running task."""
        table, members = self.downset_table, self.downset_table.downsets.members
        peaks = [table.costs.op_bytes.temporary(self.micro_batch / degree)[table.positions] for degree in self.degrees]
        rows = [np.zeros((0, len(peaks)))]
        for at, group in stages.groups:
            inside = members[at] & ~members[group.lower]
            rows.append(np.stack([(inside * held).max(axis=1) for held in peaks], axis=1))
        return np.concatenate(rows)


def uniform_partitions(loads: StageLoads) -> Iterator[list[Part]]:
    """Yield the best stages without recomputation and, if the fastest ones do not fit, the best that all recompute.

    Recomputation makes every stage slower, so it is not tried if the fastest stages fit without it.
    """
    for policy in BOTH:
        bottleneck_search = replace(loads, policies=(policy,)).bottleneck_search()
        fastest = bottleneck_search.bottleneck()
        cuts = bottleneck_search.within(fastest)
        yield loads.downset_table.parts(cuts, loads.micro_batch)
        if cuts and all(cut.fits and cut.seconds <= fastest for cut in cuts):
            return


def _counted(seconds: Array, other: Array, how: Counting) -> Array:
    if how == "none":
        return seconds
    return seconds + other if how == "added" else np.maximum(seconds, other)
