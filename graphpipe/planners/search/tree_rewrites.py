"""Rewrites of a decomposed graph for the partition search, and the bytes over its cuts."""

from collections.abc import Mapping
from itertools import pairwise

from graphpipe.graph import Graph
from graphpipe.graph.series_parallel import Leaf, Parallel, Series

_HEAVY = 0.5
"""Share of the heaviest branch's work above which a branch counts as heavy."""

_Reads = dict[str, dict[str, list[tuple[str, float]]]]
"""Readers with their bytes per sample, by operator and name of the value that it sends."""


def mirrored(tree: Series) -> Series:
    """Return the tree of the graph with every edge reversed."""
    return Series(
        tuple(
            part if isinstance(part, Leaf) else Parallel(tuple(mirrored(branch) for branch in part.branches))
            for part in reversed(tree.parts)
        )
    )


def width(tree: Series) -> int:
    """Return the largest number of branches of any parallel block; 1 for a chain."""
    blocks = [part for part in tree.parts if isinstance(part, Parallel)]
    return max((max(len(block.branches), *map(width, block.branches)) for block in blocks), default=1)


def bundled(tree: Series, groups: int) -> Series:
    """Return the tree with every parallel block narrowed to at most `groups` branches.

    Neighbouring branches are put in series, so that every cut of the result is a cut of the graph. A stage may then
    hold the end of one branch and the start of the next, or several whole branches. One group is a chain.
    """
    parts: list[Leaf | Parallel] = []
    for part in tree.parts:
        if isinstance(part, Leaf):
            parts.append(part)
            continue
        branches = [bundled(branch, groups) for branch in part.branches]
        count = len(branches)
        bounds = [count * group // min(groups, count) for group in range(min(groups, count) + 1)]
        chunks = [branches[low:high] for low, high in pairwise(bounds)]
        series = tuple(Series(tuple(inner for branch in chunk for inner in branch.parts)) for chunk in chunks)
        parts += series[0].parts if len(series) == 1 else (Parallel(series),)
    return Series(tuple(parts))


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
    return Series(tuple(part if isinstance(part, Leaf) else _paired_branches(part, shares) for part in tree.parts))


def _paired_branches(block: Parallel, shares: Mapping[str, float]) -> Parallel:
    lightest_last = sorted(block.branches, key=lambda branch: -_share(branch, shares))
    least = _HEAVY * _share(lightest_last[0], shares)
    count = max(2, sum(_share(branch, shares) > least for branch in lightest_last))
    groups = [[branch] for branch in block.branches if branch in lightest_last[:count]]
    for branch in lightest_last[count:]:
        min(groups, key=lambda group: sum(_share(other, shares) for other in group)).append(branch)
    together = [tuple(part for branch in group for part in paired(branch, shares).parts) for group in groups]
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
    _collect(tree, reads, cuts)
    return cuts


def _collect(series: Series, reads: _Reads, cuts: dict[int, tuple[float, ...]]) -> list[str]:
    """Fill `cuts` for a series and all series in it; return the operators of the series."""
    part_of: dict[str, int] = {}
    for position, part in enumerate(series.parts):
        inside = [part.op] if isinstance(part, Leaf) else [op for b in part.branches for op in _collect(b, reads, cuts)]
        part_of.update(dict.fromkeys(inside, position))
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
    cuts[id(series)] = tuple(totals)
    return list(part_of)
