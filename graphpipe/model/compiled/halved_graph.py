"""The graph of a compiled backward, cut into the graphs of its input half and its weight half.

    tangent -> mm(W2) -> gelu' -> mm(W1) -> gradient of x          input half: all that leads to gradients of values
        |                   |
    mm(h) -> of W2      mm(x) -> of W1                             weight half: the rest, from what both read

The weight half reads arguments of the backward, and what the input half computes on the way (gelu' here), so that
nothing is computed twice. GraphPP of torchtitan has the same graphs for stages that are traced whole.
"""

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import SymInt, fx


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvedGraph:
    """Two graphs that compute together what a backward computes."""

    input_half: fx.GraphModule
    """Takes the arguments of the backward, and returns gradients in the order of the forward's arguments, None where it
    computes none, and then what it keeps."""
    weight_half: fx.GraphModule
    """Takes what was kept and then some arguments of the backward, and returns gradients in the same order."""
    kept: int
    """How many values are kept between the halves."""
    reads: tuple[int, ...]
    """The arguments of the backward that the weight half takes, by their places."""


def halve(module: fx.GraphModule, parameters: Collection[int]) -> HalvedGraph:
    """Cut the graph of a backward.

    Args:
        module: of a whole backward. It returns a gradient, or None, for each argument of the forward.
        parameters: the places of the arguments whose gradients are left to the weight half.
    """
    graph = module.graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    gradients: Sequence[fx.Node | None] = cast("Any", graph.output_node().args[0])
    now = [None if place in parameters else each for place, each in enumerate(gradients)]
    later = [each if place in parameters else None for place, each in enumerate(gradients)]
    first = _leading_to(now)
    # An operation with several results is computed once, so all of them are at hand.
    first |= {node for node in graph.nodes if node.target is operator.getitem and node.args[0] in first}
    constants = {node for node in graph.nodes if node.op == "get_attr"}
    second = _leading_to(later) - first | constants
    wanted = {node for node in later if node is not None}
    between = [
        node
        for node in graph.nodes
        if node in first and node not in constants and (node in wanted or not second.isdisjoint(node.users))
    ]
    kept = [node for node in between if node.op != "placeholder"]
    # A compiler must know each size that shapes are made of, also where no operation of the half reads it.
    sizes = {node for node in placeholders if isinstance(node.meta.get("val"), SymInt)}
    reads = [node for node in placeholders if node in wanted | sizes or not second.isdisjoint(node.users)]
    return HalvedGraph(
        input_half=_module(module, placeholders, first | constants, [*now, *kept]),
        weight_half=_module(module, [*kept, *reads], second, later),
        kept=len(kept),
        reads=tuple(placeholders.index(node) for node in reads),
    )


def _leading_to(ends: Iterable[fx.Node | None]) -> set[fx.Node]:
    reached: set[fx.Node] = set()
    waiting = [node for node in ends if node is not None]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += node.all_input_nodes
    return reached


def _module(
    module: fx.GraphModule, given: Sequence[fx.Node], body: Collection[fx.Node], results: Sequence[fx.Node | None]
) -> fx.GraphModule:
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in given:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node in body and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(None if node is None else copies[node] for node in results))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)
