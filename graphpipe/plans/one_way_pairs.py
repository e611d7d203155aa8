"""What stages pass on without getting a gradient back."""

from collections.abc import Iterable, Sequence

from graphpipe.graph import Graph
from graphpipe.plans.stage import Stage, StageEdge


def one_way_pairs(graph: Graph, groups: Sequence[Iterable[str]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of operator groups, by position, between which only values pass, not gradients."""
    if not graph.one_way:
        return frozenset()
    group_of = {name: position for position, names in enumerate(groups) for name in names}
    pairs = [(group_of[read.source], group_of[read.target], read.value) for read in graph.reads]
    returned = {(source, target) for source, target, value in pairs if value not in graph.one_way}
    return frozenset((source, target) for source, target, _ in pairs) - returned


def one_way_bytes(graph: Graph, stages: Sequence[Stage], edges: Sequence[StageEdge]) -> list[float]:
    """Return, by edge, the bytes per sample of the values that it carries and that get no gradient."""
    if not graph.one_way:
        return [0.0] * len(edges)
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.ops}
    carried: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
    for source, target, value, count in graph.reads:
        between = carried.setdefault((stage_of[source], stage_of[target]), {})
        between[value] = max(between.get(value, 0.0), count)
    return [_one_way(graph, carried.get((edge.source, edge.target), {}), edge.bytes_per_sample) for edge in edges]


def _one_way(graph: Graph, carried: dict[tuple[str, str], float], count: float) -> float:
    # The edges of a rehearsal may carry less than those of its graph.
    scale = count / (sum(carried.values()) or 1.0)
    return sum(count * scale for value, count in carried.items() if value in graph.one_way)
