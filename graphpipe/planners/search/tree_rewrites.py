"""Rewrites of a decomposed graph for the partition search, and the bytes over its cuts."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from graphpipe.graph import Graph
from graphpipe.graph.tree import Leaf, Parallel, Series, inner_first, rewritten

_HEAVY = 0.5
"""Share of the heaviest branch's work above which a branch counts as heavy."""

_Reads = dict[str, dict[str, list[tuple[str, float]]]]
"""Readers with their bytes per sample, by operator and name of the value that it sends."""


def mirrored(tree: Series) -> Series:
    """Return the tree of the graph with every edge reversed."""
    known: dict[int, Series] = {}
    for series in inner_first(tree):
        known[id(series)] = Series(
            tuple(
                part if isinstance(part, Leaf) else Parallel(tuple(known[id(branch)] for branch in part.branches))
                for part in reversed(series.parts)
            )
        )
    return known[id(tree)]


def width(tree: Series) -> int:
    """Return the largest number of branches of any parallel block; 1 for a chain."""
    parts = (part for series in inner_first(tree) for part in series.parts)
    return max((len(part.branches) for part in parts if isinstance(part, Parallel)), default=1)


def bundled(tree: Series, groups: int) -> Series:
    """Return the tree with every parallel block narrowed to at most `groups` branches.

    Neighbouring branches are put in series, so that every cut of the result is a cut of the graph. A stage may then
    hold the end of one branch and the start of the next, or several whole branches. One group is a chain.
    """

    def narrowed(block: Parallel, branches: list[Series]) -> Sequence[Leaf | Parallel]:
        count = len(branches)
        bounds = [count * group // min(groups, count) for group in range(min(groups, count) + 1)]
        chunks = [branches[low:high] for low, high in pairwise(bounds)]
        series = tuple(Series(tuple(inner for branch in chunk for inner in branch.parts)) for chunk in chunks)
        return series[0].parts if len(series) == 1 else (Parallel(series),)

    return rewritten(tree, narrowed)


def paired(tree: Series, shares: Mapping[str, float]) -> Series:
    """Return the tree with the light branches of every parallel block put behind its heavy ones.

        heavy1 heavy2 light1 light2   ->   heavy1 + light1, heavy2 + light2

    A branch is heavy if its share of the work is more than half of the largest. The next light branch goes behind the
    group with the least work. The devices of a heavy branch then do the work of a light one too, which alone would
    leave a device idle most of the time.

    Args:
        tree: the decomposed graph.
        shares: of each operator in the work.
    """
    return rewritten(tree, lambda block, branches: [_paired_branches(block, branches, shares)])


def _paired_branches(block: Parallel, rewritten_branches: list[Series], shares: Mapping[str, float]) -> Parallel:
    inside = {id(branch): each for branch, each in zip(block.branches, rewritten_branches, strict=True)}
    lightest_last = sorted(block.branches, key=lambda branch: -_share(branch, shares))
    least = _HEAVY * _share(lightest_last[0], shares)
    count = max(2, sum(_share(branch, shares) > least for branch in lightest_last))
    groups = [[branch] for branch in block.branches if branch in lightest_last[:count]]
    for branch in lightest_last[count:]:
        min(groups, key=lambda group: sum(_share(other, shares) for other in group)).append(branch)
    together = [tuple(part for branch in group for part in inside[id(branch)].parts) for group in groups]
    return Parallel(tuple(Series(parts) for parts in together))


def _share(branch: Series, shares: Mapping[str, float]) -> float:
    return sum(shares[op] for op in branch.ops)


def cut_bytes(tree: Series, graph: Graph, *, reverse: bool = False) -> dict[int, tuple[float, ...]]:
    """Return bytes per sample over each cut of each series, by `id` of the series.

    Entry i of a series with n parts counts what the operators before part i send to part i or later. Entry n counts
    what leaves the series. A value with several readers counts once over each cut.

    Args:
        tree: of the graph, or of the reversed graph.
        graph: the graph itself.
        reverse: True for the reversed graph.
    """
    reads: _Reads = {op.name: {} for op in graph.ops}
    if reverse:
        for edge in graph.edges:
            reads[edge.target].setdefault("", []).append((edge.source, edge.bytes_per_sample))
    else:
        for source, target, (_, value), count in graph.reads:
            reads[source].setdefault(value, []).append((target, count))
    cuts: dict[int, tuple[float, ...]] = {}
    for series in inner_first(tree):
        cuts[id(series)] = _cuts_of(series, reads)
    return cuts


def _cuts_of(series: Series, reads: _Reads) -> tuple[float, ...]:
    part_of: dict[str, int] = {}
    for position, part in enumerate(series.parts):
        part_of.update(dict.fromkeys(part.ops, position))
    end = len(series.parts)
    steps = [0.0] * (end + 2)
    for op, position in part_of.items():
        for readers in reads[op].values():
            last = max(part_of.get(target, end + 1) for target, _ in readers)
            count = max(amount for _, amount in readers)
            if last > position:
                steps[position + 1] += count
                steps[min(last + 1, end + 1)] -= count
    totals: list[float] = []
    running = 0.0
    for step in steps[: end + 1]:
        running += step
        totals.append(max(0.0, running))
    return tuple(totals)
