"""Puts samples in front where a cut may be, for models whose values have them in another dimension.

A transformer of torch has the positions of words first by default, and samples second. Its values could not be sent by
rows, so all its layers would be one operator.
"""

from collections.abc import Mapping

import torch
from torch import fx

from graphpipe.model.capture.crossing_values import CrossingValues
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.reading import Reading


def put_samples_in_front(
    graph: fx.Graph, groups: Groups, values: CrossingValues, readings: Mapping[fx.Node, Reading]
) -> bool:
    """Pass values whose samples are in a later dimension on with samples in front, and return whether there are any.

    After each such value come two nodes: one moves its samples to the front, which may then cross, and one moves them
    back for its readers. Between two operators of one stage both are views.

    Args:
        graph: of a module; it is changed.
        groups: the finest groups of its nodes. Only in those with several calls of submodules, values are moved.
        values: of the graph.
        readings: of every node.
    """
    found = [
        (node, dimension)
        for group in groups
        if sum(node.op == "call_module" for node in group) > 1
        for node in group
        if node not in values.crossing and (dimension := readings[node].samples_at) and _is_plain(node)
    ]
    for node, dimension in found:
        _move(graph, node, dimension)
    return bool(found)


def _is_plain(node: fx.Node) -> bool:
    writes = node.meta.keys() & {"written_by", "writes"}
    return bool(node.users) and not writes and node.op in ("call_function", "call_method", "call_module")


def _move(graph: fx.Graph, node: fx.Node, dimension: int) -> None:
    readers = [*node.users]
    with graph.inserting_after(node):
        front = graph.call_function(torch.ops.aten.movedim.int, (node, dimension, 0))
    with graph.inserting_after(front):
        back = graph.call_function(torch.ops.aten.movedim.int, (front, 0, dimension))
    with graph.inserting_after(back):
        whole = graph.call_function(torch.ops.aten.contiguous.default, (back,))  # as the reader would have got it
    for made in (front, back, whole):
        made.meta["owner"] = node.meta.get("owner", "")
    for reader in readers:
        reader.replace_input_with(node, whole)
