"""Coarser forms of a graph: runs of light operators that a search may take as one.

    conv0 bn0 relu0 pool0 conv1 ...        conv0+bn0+relu0+pool0  conv1+...

Stages of many devices hold many operators, and where exactly they end matters little; for few and large stages a graph
of 300 operators is cut as well between 60 runs of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from graphpipe.graph.series_parallel import Leaf, Parallel, Series

Runs = Mapping[str, tuple[str, ...]]
"""Operators of each run, by its first."""


@dataclass(slots=True)
class Coarsening:
    """Merges neighbours in a tree; every series keeps the cuts that are left."""

    shares: Mapping[str, float]
    """How much of what is to be shared out each operator takes."""
    grain: float
    """The largest share of a run."""
    cuts: Mapping[int, tuple[float, ...]]
    """Of every series of the tree, by `id`, as `tree.cut_bytes`."""
    merged_cuts: dict[int, tuple[float, ...]]
    runs: dict[str, tuple[str, ...]]

    def series(self, series: Series) -> Series:
        """Return the series with runs in place of light neighbours, their first operator standing for all."""
        cuts = self.cuts[id(series)]
        parts: list[Leaf | Parallel] = []
        kept: list[float] = []
        room, lowest = 0.0, 0.0
        for part, before, after in zip(series.parts, cuts[:-1], cuts[1:], strict=True):
            share = sum(self.shares[op] for op in part.ops)
            # A cut narrower than those around it is kept: it may be the only one that is cheap enough.
            hidden = before >= min(after, lowest)
            if share > self.grain and isinstance(part, Parallel):
                parts.append(Parallel(tuple(self.series(branch) for branch in part.branches)))
                kept.append(before)
                room = 0.0
            elif share <= room and hidden:
                last = parts[-1]
                assert isinstance(last, Leaf)
                self.runs[last.op] += part.ops
                room -= share
            else:
                parts.append(Leaf(part.ops[0]))
                self.runs[part.ops[0]] = part.ops
                kept.append(before)
                room, lowest = self.grain - share, before
        merged = Series(tuple(parts))
        self.merged_cuts[id(merged)] = (*kept, cuts[-1])
        return merged
