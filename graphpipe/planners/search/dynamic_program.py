"""The partition dynamic program: the devices that each prefix of a graph needs, for many targets at once.

GraphPipe (section 5, Algorithm 1) asks for one target time t whether a subgraph can run on d devices with at most t
seconds per stage. It recurses over the series-parallel structure with three cases: *base* (the subgraph is one stage),
*series* and *parallel* (split the devices between two subgraphs). This module applies the same three cases from the
sources to the sinks, with one array instead of one memo entry per device count:

    load[m, k] = the smallest load of the *open* stage, which the next operator may still join, if the stages
                 before it are closed on at most m devices and the open stage will run on d_k devices

    series     an operator joins the open stage (load grows), or the open stage closes (it must fit; m grows by
               d_k) and the operator opens a new one.
    parallel   the stage before the fork closes; every branch starts stages of its own; at the join, the open
               stages of all branches become one stage, to which the join and what follows it may be added: device
               counts are split by a min-plus convolution over m. A branch may also close its last stage first.
    base       the open stage takes a whole parallel block.

The join can therefore share a stage with the tails of any of its branches, and one stage can take small branches whole.
A recursion in which every stage is a two-terminal subgraph cannot express that. A load is a fraction of a stage's
limit, with one row for time and, if memory is tight, one for memory. A stage fits if neither exceeds 1. All arrays
have the shape [rows, degrees, devices + 1, settings, targets], so one walk covers every setting and target.
"""

from functools import cached_property

import numpy as np

from graphpipe.graph.tree import Leaf, Parallel, Series, inner_first
from graphpipe.planners.search.backtrack import Backtrack, ClosedStage, Mask, Walk, WalkStep, fullness
from graphpipe.planners.search.relative_loads import SLACK, Float, RelativeLoads, Shares


class DynamicProgram:
    """The dynamic program over one decomposed graph."""

    def __init__(self, tree: Series, loads: RelativeLoads, cuts: dict[int, tuple[float, ...]], devices: int) -> None:
        """Prepare the arrays.

        Args:
            tree: the decomposed graph.
            loads: of its operators.
            cuts: for every series of the tree, by `id`: bytes per sample over the boundary before each part and
                after the last.
            devices: number of devices, in units.
        """
        self._tree = tree
        self._loads = loads
        self._cuts = cuts
        settings, targets = loads.targets.shape
        self._degrees = loads.units
        self._shape = (loads.rows, len(self._degrees), devices + 1, settings, targets)
        self._monotone = loads.rows == 1 and loads.overlap
        """More devices before an open stage never increase its load, so what can close on m devices can on more."""
        self._keep = True
        self._known: dict[object, Walk] = {}
        self._walks: dict[int, Walk] = {}
        self._table, self._row_of = loads.table(tree.ops)
        self._narrow = loads.narrow_bytes

    @property
    def targets(self) -> int:
        """Number of targets of each setting."""
        return self._shape[-1]

    def feasible(self) -> Mask:
        """Return, of shape [settings, targets], whether the graph fits on all devices.

        Keeps nothing for backtracking, so that memory can be reused at once.
        """
        self._keep = False
        return self._walk(self._tree).closed[-1]

    def partition(self, setting: int, target: int) -> list[ClosedStage]:
        """Return the stages, in topological order, for one setting and one target (positions) that is feasible."""
        walk = self._walk(self._tree)
        back = Backtrack(self._degrees, self._reached, setting, target)
        stages, tail = back.end(self._tree, walk, self._shape[2] - 1, 0)
        assert not tail, "the last stage is closed"
        return stages

    @cached_property
    def _reached(self) -> list[Mask]:
        ends = np.add.outer(self._degrees, np.arange(self._shape[2]))
        return [ends[:, : devices + 1] <= devices for devices in range(self._shape[2])]

    # The forward walk.

    def _walk(self, series: Series) -> Walk:
        """Walk a series from its start, after the series in it. Equal series share one walk."""
        for inner in inner_first(series) if id(series) not in self._walks else ():
            if id(inner) not in self._walks:
                signature = self._signature(inner)
                if signature not in self._known:
                    self._known[signature] = self._walked(inner)
                self._walks[id(inner)] = self._known[signature]
        return self._walks[id(series)]

    def _walked(self, series: Series) -> Walk:
        cuts = self._cuts[id(series)]
        load = np.zeros(self._shape, Float)
        steps: list[WalkStep] = []
        for part, cut in zip(series.parts, cuts, strict=False):
            step = self._step(load, cut)
            if isinstance(part, Leaf):
                # Series case: the operator joins the open stage, or opens a new one if the open stage can close.
                load = self._opened(load, step.closed, cut)
                load += self._table[self._row_of[part.op]]
            else:
                load = self._parallel(part, step)
            if self._keep:
                steps.append(step)
        end = self._step(load, cuts[-1])
        return Walk([*steps, end], self._opened(load, end.closed, 0.0))

    def _parallel(self, part: Parallel, step: WalkStep) -> Shares:
        # Base case: the whole block joins the open stage.
        riding = step.before + self._table[[self._row_of[op] for op in part.ops]].sum(axis=0)
        # Parallel case: the stage before the fork closes; the devices are split between the branches.
        merged = np.broadcast_to(np.where(step.closed, Float(0), Float(np.inf)), self._shape)
        branches = tuple(self._walks[id(branch)] for branch in part.branches)
        all_merged = [merged]
        for walk in branches:
            merged = self._convolve(merged, walk.after)
            all_merged.append(merged)
        if self._keep:
            step.riding, step.branches, step.merged = riding, branches, tuple(all_merged)
        return np.where(fullness(riding) <= fullness(merged), riding, merged)

    def _signature(self, series: Series) -> object:
        # The walks of the series in it are known, and equal for equal series.
        parts = tuple(
            self._row_of[part.op]
            if isinstance(part, Leaf)
            else tuple(id(self._walks[id(branch)]) for branch in part.branches)
            for part in series.parts
        )
        return (parts, self._cuts[id(series)])

    def _step(self, load: Shares, cut: float) -> WalkStep:
        full = fullness(load)
        fits = full <= SLACK
        if not self._loads.overlap:
            fits &= load[0] + self._loads.of_cut(cut) <= SLACK
        elif cut > self._narrow:
            fits &= self._loads.of_cut(cut) <= SLACK
        # An empty stage counts as closed, whatever its degree would be.
        closed = full[0] == 0.0
        for k, degree in enumerate(self._degrees):
            behind = closed[degree:]
            np.logical_or(behind, fits[k, :-degree], out=behind)
        return WalkStep(load, fits, closed if self._monotone else np.logical_or.accumulate(closed))

    def _opened(self, load: Shares, closed: Mask, cut: float) -> Shares:
        """Return the loads with an empty open stage wherever the open stage could close."""
        if not cut or self._loads.overlap:
            if self._keep:
                return np.where(closed, Float(0), load)
            np.copyto(load, Float(0), where=closed)
            return load
        arriving = np.zeros((self._shape[0], *self._loads.of_cut(cut).shape), Float)
        arriving[0] = self._loads.of_cut(cut)
        return np.where(closed, arriving, load)

    def _convolve(self, left: Shares, right: Shares) -> Shares:
        """Return the smallest sum of loads over every split of m devices between the two sides."""
        devices = self._shape[2]
        best = np.full(self._shape, np.inf, Float)
        fullest = fullness(best) if self._loads.rows == 1 else np.full(self._shape[1:], np.inf, Float)
        # A device is wasted on the right side if the load stays the same without it.
        useful = np.isfinite(right)
        useful[:, :, 1:] &= right[:, :, 1:] != right[:, :, :-1]
        least = int(np.isfinite(left).any(axis=(0, 1, 3, 4)).argmax())
        # Allocated once, because allocating new memory takes longer than filling it.
        buffer = np.empty_like(best)
        for count in np.flatnonzero(useful[:, :, : devices - least].any(axis=(0, 1, 3, 4))):
            split = np.s_[:, :, least : devices - count]
            total = np.add(left[split], right[:, :, count : count + 1], out=buffer[split])
            kept = np.s_[..., least + count :, :, :]
            if self._loads.rows == 1:
                np.minimum(best[kept], total, out=best[kept])
                continue
            fuller = fullness(total)
            better = fuller < fullest[kept]
            np.copyto(best[kept], total, where=better)
            np.copyto(fullest[kept], fuller, where=better)
        return best
