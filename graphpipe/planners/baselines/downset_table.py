"""The downsets of a graph, with the bytes that each of them reads and holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.graph import Graph, Read
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_cuts import StageCut
from graphpipe.planners.problem.partition import Part, Problem

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
_CHUNK = 20_000
"""About how many stages are computed at once."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The outputs that one downset reads from outside, and their readers."""

    operators: Indices
    """The reading operators, grouped by value."""
    counts: Array
    """Bytes per sample of each reading operator's value."""
    firsts: Indices
    """Position of the first reader of each value."""

    def bytes_read(self, readers: NDArray[np.bool_]) -> Array:
        """Return the bytes per sample that each set of operators reads; a value counts once.

        Args:
            readers: [sets, operators].
        """
        if not len(self.operators):
            return np.zeros(len(readers))
        return np.maximum.reduceat(readers[:, self.operators] * self.counts, self.firsts, axis=1).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages, each the operators of one downset that are not in a smaller one. All arrays have the shape [stages]."""

    upper: Indices
    """Positions of the larger downsets, ascending."""
    lower: Indices
    received: Array
    """Bytes per sample that the stage reads from outside."""

    @staticmethod
    def concatenate(stages: "Sequence[Stages]") -> "Stages":
        """Return the stages of several values in one."""
        return Stages(*(np.concatenate([getattr(part, name) for part in stages]) for name in Stages.__slots__))

    def only(self, chosen: Indices | slice) -> "Stages":
        """Return some of the stages."""
        return Stages(self.upper[chosen], self.lower[chosen], self.received[chosen])

    @property
    def groups(self) -> "Iterator[tuple[int, Stages]]":
        """The stages of each larger downset."""
        starts = np.flatnonzero(np.diff(self.upper, prepend=-1))
        for start, end in pairwise([*starts.tolist(), len(self.upper)]):
            yield int(self.upper[start]), self.only(slice(start, end))


@dataclass(frozen=True, slots=True)
class DownsetTable:
    """The downsets of a graph, with the bytes they hold and read, for any micro-batch size."""

    problem: Problem
    costs: CostModel
    graph: Graph
    """The operators to place: the problem's graph, without a whole-batch tail."""
    downsets: Downsets
    positions: Indices
    """Positions of the operators in the problem's graph."""
    reads: tuple[Reads, ...]
    """Values that each downset reads."""
    cut_bytes: Array
    """[downsets]: bytes per sample that the downset reads from outside."""
    saved_bytes: Array
    """[downsets]: bytes per sample that the downset saves."""
    saved_by_forward: Array
    """[downsets]: bytes that the downset saves per micro-batch (see `OpBytes.saved_of`)."""
    _stages: "list[Stages]" = field(default_factory=lambda: [])

    @staticmethod
    def of(problem: Problem, costs: CostModel, graph: Graph, downsets: Downsets) -> "DownsetTable":
        """Return the table of these downsets."""
        positions = costs.positions(op.name for op in graph.ops)
        reads = _all_reads(graph, downsets)
        return DownsetTable(
            problem,
            costs,
            graph,
            downsets,
            positions,
            reads,
            np.array([float(read.bytes_read(downsets.members[[at]])[0]) for at, read in enumerate(reads)]),
            downsets.members @ costs.op_bytes.saved[positions],
            downsets.members @ costs.op_bytes.saved_by_forward[positions],
        )

    @property
    def devices(self) -> int:
        """Number of devices in the cluster."""
        return len(self.problem.cluster.devices)

    @property
    def before_tail(self) -> bool:
        """Whether a whole-batch tail follows, which makes every stage keep the mini-batch in flight."""
        return len(self.graph.ops) < len(self.problem.graph.ops)

    @property
    def stages(self) -> "Iterator[Stages]":
        """All stages, grouped by the larger downset, in chunks that fit in a cache."""
        if not self._stages:
            groups = [self._stages_of(at) for at in range(1, len(self.downsets))]
            ends = np.cumsum([len(group.lower) for group in groups]) // _CHUNK
            for chunk in np.split(np.arange(len(groups)), np.flatnonzero(np.diff(ends)) + 1):
                self._stages.append(Stages.concatenate([groups[at] for at in chunk]))
        return iter(self._stages)

    def _stages_of(self, at: int) -> "Stages":
        members, below = self.downsets.members, self.downsets.below(at)
        received = self.reads[at].bytes_read(members[at] & ~members[below])
        return Stages(np.full(len(below), at), below, received)

    def parts(self, cuts: list[StageCut], micro_batch: int) -> list[Part]:
        """Return the stages of a solution."""
        chain: list[Part] = []
        for cut in cuts:
            inside = self.downsets.members[cut.upper] & ~self.downsets.members[cut.lower]
            ops = tuple(name for name in self.graph.order if inside[self.graph.index[name]])
            again = "full" if cut.recomputes else "none"
            chain.append(Part(ops, cut.devices, micro_batch, recompute=again, state=self.problem.state))
        return chain


def _all_reads(graph: Graph, downsets: Downsets) -> tuple[Reads, ...]:
    reads = sorted(graph.reads, key=lambda read: (graph.index[read.source], read.value[1]))
    source, target = _ends(graph, reads)
    numbers = {value: number for number, value in enumerate(dict.fromkeys(read.value for read in reads))}
    value = np.array([numbers[read.value] for read in reads], dtype=np.intp)
    counts = np.array([read.bytes_per_sample for read in reads])
    reads_by_downset: list[Reads] = []
    for members in downsets.members:
        cut = np.flatnonzero(members[target] & ~members[source])
        firsts = np.flatnonzero(np.diff(value[cut], prepend=-1))
        reads_by_downset.append(Reads(target[cut], counts[cut], firsts))
    return tuple(reads_by_downset)


def _ends(graph: Graph, reads: Sequence[Read]) -> tuple[Indices, Indices]:
    ends = [(graph.index[read.source], graph.index[read.target]) for read in reads]
    pairs = np.array(ends, dtype=np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
