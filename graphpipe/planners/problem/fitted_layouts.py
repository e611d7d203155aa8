"""The layouts of operators that the devices of a plan can follow. The others run whole on every device."""

from collections.abc import Mapping
from dataclasses import replace

from graphpipe.graph import Graph


def fitted_layouts(graph: Graph, ranks: Mapping[str, int]) -> Graph:
    """Return the graph without the layouts that its devices cannot follow; itself if they can follow all.

    So many devices may not be able to share an operator, such as attention with two heads by four. A parameter that
    several operators hold is divided only if all of them divide it among as many devices.

    Args:
        graph: with every layout.
        ranks: how many devices share each operator, by its name.
    """
    whole = {op.name for op in graph.ops if op.shards is not None and not op.shards.shared_by(ranks[op.name])}
    held = [set(graph.holders[parameter.name]) for parameter in graph.shared]
    whole |= {
        op
        for parameter, holders in zip(graph.shared, held, strict=True)
        if len({ranks[op] for op in holders}) > 1
        for op in holders
        if (shards := graph[op].shards) is not None and parameter.name in dict(shards.parameters)
    }
    while grown := {op for holders in held if whole & holders for op in holders if graph[op].shards} - whole:
        whole |= grown
    if not whole:
        return graph
    return replace(graph, ops=tuple(replace(op, shards=None) if op.name in whole else op for op in graph.ops))
