"""The downsets of a graph, with the bytes that each of them reads and holds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel
from graphpipe.graph import Graph, Read
from graphpipe.planners.baselines.downsets import Downsets
from graphpipe.planners.baselines.stage_cuts import StageCut
from graphpipe.planners.problem.partition import Part, Problem

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Reads:
    """The outputs that one downset reads from outside, and their readers."""

    operators: Indices
    """The reading operators, grouped by value."""
    counts: Array
    """Bytes per sample."""
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
    """By downset."""
    cut_bytes: Array
    """[downsets]: bytes per sample that the downset reads from outside."""
    saved_bytes: Array

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
        )

    @property
    def devices(self) -> int:
        """Number of devices in the cluster."""
        return len(self.problem.cluster.devices)

    @property
    def before_tail(self) -> bool:
        """Whether a whole-batch tail follows, which makes every stage keep the mini-batch in flight."""
        return len(self.graph.ops) < len(self.problem.graph.ops)

    def parts(self, cuts: list[StageCut], micro_batch: int) -> list[Part]:
        """Return the stages of a solution."""
        found: list[Part] = []
        for cut in cuts:
            inside = self.downsets.members[cut.upper] & ~self.downsets.members[cut.lower]
            ops = tuple(name for name in self.graph.order if inside[self.graph.index[name]])
            again = "full" if cut.recomputes else "none"
            found.append(Part(ops, cut.devices, micro_batch, recompute=again, state=self.problem.state))
        return found


def _all_reads(graph: Graph, downsets: Downsets) -> tuple[Reads, ...]:
    reads = sorted(graph.reads, key=lambda read: (graph.index[read.source], read.value[1]))
    source, target = _ends(graph, reads)
    numbers = {value: number for number, value in enumerate(dict.fromkeys(read.value for read in reads))}
    value = np.array([numbers[read.value] for read in reads], dtype=np.intp)
    counts = np.array([read.bytes_per_sample for read in reads])
    found: list[Reads] = []
    for members in downsets.members:
        cut = np.flatnonzero(members[target] & ~members[source])
        firsts = np.flatnonzero(np.diff(value[cut], prepend=-1))
        found.append(Reads(target[cut], counts[cut], firsts))
    return tuple(found)


def _ends(graph: Graph, reads: Sequence[Read]) -> tuple[Indices, Indices]:
    ends = [(graph.index[each.source], graph.index[each.target]) for each in reads]
    found = np.array(ends, dtype=np.intp).reshape(-1, 2)
    return found[:, 0], found[:, 1]
