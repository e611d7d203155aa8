"""What stages cost in the eyes of the baseline planners: the shared look-up, summed over nested downsets at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.graph import Edge, Graph
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_cuts import UNLIMITED, Cut, Ladder, Ways
from graphpipe.planners.problem.partition import Part, Problem
from graphpipe.planners.search.size_settings import far_bandwidth

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Counting = Literal["none", "longest", "added"]
"""How transfers or the all-reduce count: not at all, only if they take longer than all else, or on top of it."""
Policy = Literal["none", "full"]
BOTH: tuple[Policy, ...] = ("none", "full")


@dataclass(frozen=True, slots=True)
class Reads:
    """The outputs read from outside by one downset, and where."""

    operators: Indices
    """The reading operators, grouped by source."""
    counts: Array
    """Bytes per sample."""
    firsts: Indices
    """Position of the first reader of each source."""

    def bytes_read(self, readers: NDArray[np.bool_]) -> Array:
        """Return bytes per sample read by sets of operators, [sets, operators]; a source counts once."""
        if not len(self.operators):
            return np.zeros(len(readers))
        return np.maximum.reduceat(readers[:, self.operators] * self.counts, self.firsts, axis=1).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Landscape:
    """The downsets of a graph, and what they hold and read, whatever the micro-batch."""

    problem: Problem
    costs: CostModel
    graph: Graph
    """The operators to place: the problem's graph, without a whole-batch tail."""
    downsets: Downsets
    positions: Indices
    """Of the operators in the problem's graph."""
    reads: tuple[Reads, ...]
    """By downset."""
    cut_bytes: Array
    """[downsets]: bytes per sample that the downset reads from outside."""
    state_bytes: Array
    saved_bytes: Array

    @staticmethod
    def of(problem: Problem, costs: CostModel, graph: Graph, downsets: Downsets) -> "Landscape":
        """Return the landscape of these downsets."""
        positions = costs.positions(op.name for op in graph.ops)
        reads = _all_reads(graph, downsets)
        return Landscape(
            problem,
            costs,
            graph,
            downsets,
            positions,
            reads,
            np.array([float(read.bytes_read(downsets.members[[at]])[0]) for at, read in enumerate(reads)]),
            downsets.members @ costs.state_bytes_by_op[positions],
            downsets.members @ costs.saved_bytes[positions],
        )

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.problem.cluster.devices)

    @property
    def before_tail(self) -> bool:
        """Whether a whole-batch tail follows, for which every stage keeps the mini-batch in flight."""
        return len(self.graph.ops) < len(self.problem.graph.ops)

    def parts(self, cuts: list[Cut], micro_batch: int) -> list[Part]:
        """Return the stages of a solution."""
        found: list[Part] = []
        for cut in cuts:
            inside = self.downsets.members[cut.upper] & ~self.downsets.members[cut.lower]
            ops = tuple(name for name in self.graph.order if inside[self.graph.index[name]])
            found.append(Part(ops, cut.devices, micro_batch, recompute="full" if cut.recomputes else "none"))
        return found


def _all_reads(graph: Graph, downsets: Downsets) -> tuple[Reads, ...]:
    edges = sorted(graph.edges, key=lambda edge: graph.index[edge.source])
    source, target = _ends(graph, edges)
    counts = np.array([edge.bytes_per_sample for edge in edges])
    found: list[Reads] = []
    for members in downsets.members:
        cut = np.flatnonzero(members[target] & ~members[source])
        firsts = np.flatnonzero(np.diff(source[cut], prepend=-1))
        found.append(Reads(target[cut], counts[cut], firsts))
    return tuple(found)


def _ends(graph: Graph, edges: list[Edge]) -> tuple[Indices, Indices]:
    source = np.array([graph.index[edge.source] for edge in edges], dtype=np.intp)
    return source, np.array([graph.index[edge.target] for edge in edges], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class StageLoads:
    """The ways to cut stages off downsets for one micro-batch size, as one planner sees them."""

    landscape: Landscape
    micro_batch: int
    degrees: tuple[int, ...]
    """Data-parallel degrees that stages may have."""
    traffic: Counting = "longest"
    """Activations and their gradients."""
    all_reduce: Counting = "added"
    """Of the weight gradients, spread over the mini-batch."""
    whole_batch_held: bool = False
    """Whether the schedule keeps the whole mini-batch in flight at every stage."""
    policies: tuple[Policy, ...] = ()
    """What stages may recompute, the cheaper first; empty: what the problem says."""

    def ladder(self, ceiling: float = np.inf) -> Ladder:
        """Return all ways but those slower than `ceiling` seconds per sample."""
        land = self.landscape
        policies: tuple[Policy, ...] = self.policies or (land.problem.recompute,)
        compute: list[tuple[Policy, Array]] = [
            (policy, self._summed(partial(self._compute, again=policy == "full"))) for policy in policies
        ]
        reduce = self._summed(self._reduce)
        ways = [self._all_ways(at, compute, reduce, ceiling) for at in range(1, len(land.downsets))]
        return Ladder(ways, len(land.problem.cluster.devices))

    def _summed(self, each: Callable[[int], Array]) -> Array:
        """Return, of shape [downsets, degrees], the sums of what operators add at every degree."""
        return np.stack([self.landscape.downsets.members @ each(degree) for degree in self.degrees], axis=1)

    def _compute(self, degree: int, again: bool) -> Array:
        """Return seconds per sample of each operator's forward, once or `again`, and backward, on the slowest type."""
        land, size = self.landscape, self.micro_batch
        kinds = sorted({device.type for device in land.problem.cluster.devices})
        each = [land.costs.seconds(kind, size / degree) for kind in kinds]
        seconds = [np.sum((seconds[0], *seconds) if again else seconds, axis=0) for seconds in each]
        return np.max(seconds, axis=0)[land.positions] / size

    def _reduce(self, degree: int) -> Array:
        """Return seconds per sample of each operator's share of the update: all-reduce and optimizer step."""
        land = self.landscape
        reduce = all_reduce_seconds_per_byte(land.problem, degree)
        per_byte = (reduce + land.problem.costs.optimizer_seconds_per_parameter_byte) / land.problem.batch_size
        return land.costs.trainable_bytes[land.positions] * per_byte

    def _all_ways(self, at: int, compute: Sequence[tuple[Policy, Array]], reduce: Array, ceiling: float) -> Ways:
        """Return the ways of all policies; those that recompute only where memory may be short without."""
        (first, seconds), *others = compute
        found = [self._ways(at, seconds, reduce, ceiling, first)]
        if others and (found[0].limit < min(len(self.landscape.graph.ops), self.landscape.devices)).any():
            found += [self._ways(at, seconds, reduce, ceiling, policy) for policy, seconds in others]
        return Ways.together(found) if len(found) > 1 else found[0]

    def _ways(self, at: int, compute: Array, reduce: Array, ceiling: float, policy: Policy) -> Ways:
        land = self.landscape
        below = land.downsets.below(at)
        seconds = compute[at] - compute[below]
        promising = (seconds <= ceiling).any(axis=1)
        below, seconds = below[promising], seconds[promising]
        received = land.reads[at].bytes_read(land.downsets.members[at] & ~land.downsets.members[below])
        seconds = _counted(seconds, reduce[at] - reduce[below], self.all_reduce)
        seconds = _counted(seconds, self._traffic(at, below, received), self.traffic)
        limit = self._limits(at, below, received, policy)
        row, column = np.nonzero(seconds <= ceiling)
        one = np.ones(len(row), np.int64)
        again = np.full(len(row), policy == "full")
        return Ways(below[row], np.array(self.degrees)[column], seconds[row, column], one, limit[row, column], again)

    def _traffic(self, at: int, below: Indices, received: Array) -> Array:
        """Return, of shape [stages, degrees], seconds per sample of moving activations and their gradients."""
        land = self.landscape
        if self.traffic == "longest":  # What crosses the wider end, also on its way past the stage.
            count = np.maximum(land.cut_bytes[at], land.cut_bytes[below])
        else:
            count = received + land.cut_bytes[below] - land.reads[at].bytes_read(land.downsets.members[below])
        return 2 * count[:, None] / np.array(self.degrees) / far_bandwidth(land.problem)

    def _limits(self, at: int, below: Indices, received: Array, policy: Policy) -> NDArray[np.int64]:
        """Return, of shape [stages, degrees], how long the rest of the pipeline may be for the stage to fit."""
        land, batch = self.landscape, self.landscape.problem.batch_size
        kinds = {device.type for device in land.problem.cluster.devices}
        capacity = min(land.problem.cluster.types[kind].memory_bytes for kind in kinds)
        spare = (capacity - land.state_bytes[at] + land.state_bytes[below])[:, None]
        saved, received = (land.saved_bytes[at] - land.saved_bytes[below])[:, None], received[:, None]
        kept = (received if policy == "full" else saved + received) / np.array(self.degrees)
        if land.costs.knows_temporaries:
            spare = spare - self._temporaries(at, below)
        if policy == "full":  # A backward holds its micro-batch's once.
            spare = spare - saved * self.micro_batch / np.array(self.degrees)
        samples = np.where(spare < 0, 0.0, np.full(kept.shape, float(UNLIMITED)))
        np.divide(spare, kept, out=samples, where=(spare >= 0) & (kept > spare / UNLIMITED))
        samples = np.floor(samples * (1 + 1e-9))
        whole = self.whole_batch_held or land.before_tail
        fewer = np.zeros_like(samples) if whole else np.maximum(samples // self.micro_batch, 0)
        return np.where(samples >= batch, UNLIMITED, fewer).astype(np.int64)

    def _temporaries(self, at: int, below: Indices) -> Array:
        """Return, of shape [stages, degrees], the bytes that a task holds while it runs."""
        land = self.landscape
        inside = land.downsets.members[at] & ~land.downsets.members[below]
        each = (land.costs.temporary_bytes(self.micro_batch / degree)[land.positions] for degree in self.degrees)
        return np.stack([(inside * held).max(axis=1) for held in each], axis=1)


def uniform_partitions(loads: StageLoads) -> Iterator[list[Part]]:
    """Yield the best stages that recompute nothing, and, where memory forbids the fastest, the best that all recompute.

    Recomputation makes every stage slower: where the fastest stages fit without, none are better.
    """
    for policy in BOTH:
        ladder = replace(loads, policies=(policy,)).ladder()
        fastest = ladder.bottleneck()
        cuts = ladder.within(fastest)
        yield loads.landscape.parts(cuts, loads.micro_batch)
        if cuts and all(cut.fits and cut.seconds <= fastest for cut in cuts):
            return


def all_reduce_seconds_per_byte(problem: Problem, degree: int) -> float:
    """Return the seconds that a ring all-reduce over neighbouring devices takes per byte."""
    link = problem.cluster.slowest_link(tuple(range(min(degree, len(problem.cluster.devices)))))
    return 2 * (degree - 1) / degree / link.bandwidth_bytes_per_second if link else 0.0


def _counted(seconds: Array, other: Array, how: Counting) -> Array:
    if how == "none":
        return seconds
    return seconds + other if how == "added" else np.maximum(seconds, other)
