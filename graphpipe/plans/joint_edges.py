"""What stage edges carry: values that come along several edges to the same devices, and values without a gradient.

stage 0 on device 0 --v--> stage 1 on device 1        The edge 0 -> 3 reads v from what came along 0 -> 1. The
                    --v--> stage 3 on device 1        gradient of v is summed on device 1, and goes back once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphpipe.graph import Graph
from graphpipe.plans.stage import Stage, StageEdge

_RELATIVE = 1e-6
NONE: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointEdges:
    """The earlier edges that carry values of an edge, by its position in `Plan.edges`. Empty for most plans."""

    outputs: Mapping[int, tuple[int, ...]]
    """The edges that bring values to the devices, where the target takes them."""
    gradients: Mapping[int, tuple[int, ...]]
    """The edges to whose gradients the devices add those of this edge, so that they go back together."""

    def without(self, edge: int, *, backward: bool) -> tuple[int, ...]:
        """Return the edges whose values the messages of an edge leave out."""
        return (self.gradients if backward else self.outputs).get(edge, NONE)


def joint_edges(
    graph: Graph, stages: Sequence[Stage], edges: Sequence[StageEdge], gradient_edges: Collection[int]
) -> JointEdges:
    """Return which edges of a plan carry values for each other.

    Two edges of one source are joint if they carry a common value, and their targets are on the same devices with the
    same micro-batch, so that each device needs the same samples for both.

    A gradient is added to that of an earlier edge only if a gradient also goes from its target back to the target of
    the earlier edge. Then every backward of the later target comes first, whatever the schedule.

    Args:
        graph: of the plan.
        stages: of the plan.
        edges: of the plan.
        gradient_edges: positions of the edges along which gradients go back.
    """
    if len({(stage.devices, stage.micro_batch) for stage in stages}) == len(stages):
        return JointEdges(outputs={}, gradients={})
    values = whole_values(graph, stages, edges)
    outputs: dict[int, tuple[int, ...]] = {}
    gradients: dict[int, tuple[int, ...]] = {}
    after = _reached(edges, gradient_edges)
    for number, edge in enumerate(edges):
        target = stages[edge.target]
        earlier = tuple(
            other
            for other in range(number)
            if edges[other].source == edge.source
            and stages[edges[other].target].devices == target.devices
            and stages[edges[other].target].micro_batch == target.micro_batch
            and values[number].keys() & values[other].keys()
        )
        if earlier:
            outputs[number] = earlier
        if earlier := tuple(other for other in earlier if edge.target in after.get(edges[other].target, ())):
            gradients[number] = earlier
    return JointEdges(outputs=outputs, gradients=gradients)


def whole_values(
    graph: Graph, stages: Sequence[Stage], edges: Sequence[StageEdge]
) -> list[dict[tuple[str, str], float]]:
    """Return, by edge, the values that it carries, with the bytes per sample. A key has the operator and the name.

    Where the graph does not list the values of an operator, an edge has its output if it carries the whole of it.
    """
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.ops}
    position = {(edge.source, edge.target): number for number, edge in enumerate(edges)}
    counts: list[dict[tuple[str, str], float]] = [{} for _ in edges]
    for source, target, value, count in graph.reads:
        number = position.get((stage_of[source], stage_of[target]))
        if number is not None:
            counts[number][value] = max(counts[number].get(value, 0.0), count)
    whole = {(op.name, ""): op.output_bytes_per_sample * (1 - _RELATIVE) for op in graph.ops}
    # The edges of a rehearsal may carry less than those of its graph.
    scales = [edge.bytes_per_sample / (sum(count.values()) or 1.0) for edge, count in zip(edges, counts, strict=True)]
    return [
        {value: part * scale for value, part in count.items() if 0 < whole.get(value, part) <= part}
        for count, scale in zip(counts, scales, strict=True)
    ]


def _reached(edges: Sequence[StageEdge], gradient_edges: Collection[int]) -> dict[int, set[int]]:
    """Return, by stage, the stages whose gradients reach it. Edges go from lower to higher positions."""
    reached: dict[int, set[int]] = {}
    for number in sorted(gradient_edges, key=lambda number: edges[number].source, reverse=True):
        edge = edges[number]
        reached.setdefault(edge.source, set()).update({edge.target}, reached.get(edge.target, ()))
    return reached


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
