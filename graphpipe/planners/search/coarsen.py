"""Coarser forms of a graph, in which runs of light operators are merged into one.

    conv0 bn0 relu0 pool0 conv1 ...        conv0+bn0+relu0+pool0  conv1+...

A stage on many devices holds many operators, and its exact ends matter little. For few and large stages, 60 runs of a
graph of 300 operators give cuts that are as good.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from graphpipe.graph.series_parallel import Leaf, Parallel, Series

MergedOps = Mapping[str, tuple[str, ...]]
"""Operators of each run, by the first operator."""


@dataclass(slots=True)
class Coarsening:
    """Merges neighbours in a tree, and keeps the remaining cuts of every series."""

    shares: Mapping[str, float]
    """Share of each operator in the work, see `setting_table.shares`."""
    largest_share: float
    """The largest share of a run."""
    cuts: Mapping[int, tuple[float, ...]]
    """Bytes that cross between the parts of every series of the tree, by its `id`, see `tree_rewrites.cut_bytes`."""
    merged_cuts: dict[int, tuple[float, ...]]
    runs: dict[str, tuple[str, ...]]

    def series(self, series: Series) -> Series:
        """Return the series with each run of light neighbours replaced by its first operator."""
        cuts = self.cuts[id(series)]
        parts: list[Leaf | Parallel] = []
        kept: list[float] = []
        room, lowest = 0.0, 0.0
        for part, before, after in zip(series.parts, cuts[:-1], cuts[1:], strict=True):
            share = sum(self.shares[op] for op in part.ops)
            # Keep a cut that is narrower than those around it, because it may be the only one that is cheap enough.
            hidden = before >= min(after, lowest)
            if share > self.largest_share and isinstance(part, Parallel):
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
                room, lowest = self.largest_share - share, before
        merged = Series(tuple(parts))
        self.merged_cuts[id(merged)] = (*kept, cuts[-1])
        return merged
