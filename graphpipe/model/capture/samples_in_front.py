"""Puts samples in front where a cut may be, for models whose values have them in another dimension.

A transformer of torch has the positions of words first by default, and samples second. Vision towers as Qwen2-VL's have
the patches of all images in one dimension. Such values could not be sent by rows, so all layers would be one operator.
"""

from collections.abc import Mapping

import torch
from torch import fx

from graphpipe.model.capture.crossing_values import CrossingValues, is_anchor
from graphpipe.model.capture.groups import Groups
from graphpipe.model.capture.module_graph.module_graph import stand_in
from graphpipe.model.capture.reading import Reading
from graphpipe.model.torch_private import leaf

_JOINING = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten.flatten.using_ints)
"""Operators that join or divide dimensions without moving anything."""


def put_samples_in_front(
    graph: fx.Graph, groups: Groups, values: CrossingValues, readings: Mapping[fx.Node, Reading]
) -> bool:
    """Pass values whose samples are in a later dimension on with samples in front, and return whether there are any.

    After each such value come two nodes: one moves its samples to the front, which may then cross, and one moves them
    back for its readers. Between two operators of one stage both are views. The same is done where the first dimension
    has several rows for each sample, one sample after the other.

    Args:
        graph: of a module; it is changed.
        groups: the finest groups of its nodes. Only in those with several calls of submodules, values are moved.
        values: of the graph.
        readings: of every node.
    """
    inside = [
        node
        for group in groups
        if sum(node.op == "call_module" for node in group) > 1
        for node in group
        if node not in values.crossing and _is_plain(node)
    ]
    moved = [(node, dimension) for node in inside if (dimension := readings[node].samples_at)]
    by_rows = rows_by_samples(graph, readings)
    divided = [(node, by_rows[node]) for node in inside if node in by_rows]
    for node, dimension in moved:
        _move(graph, node, dimension)
    for node, rows in divided:
        _divide(graph, node, rows)
    return bool(moved or divided)


def rows_by_samples(graph: fx.Graph, readings: Mapping[fx.Node, Reading]) -> dict[fx.Node, int]:
    """Return the rows for each sample of the values with several of them, whose samples follow each other.

    Where the dimensions [samples, rows] are joined, samples follow each other. They still do after an operator that
    keeps the number of rows, or a call of a submodule that keeps it or merges rows. Two batches that are joined by
    `torch.cat` have two rows for each sample, too, and these are apart.

    Args:
        graph: of a module.
        readings: of every node.
    """
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        reading = readings[node]
        if reading.rows and _keeps_order(node, reading.rows, found, readings):
            found[node] = reading.rows
    return {node: rows for node, rows in found.items() if rows > 1}


def _keeps_order(node: fx.Node, rows: int, found: Mapping[fx.Node, int], readings: Mapping[fx.Node, Reading]) -> bool:
    made = node.args[0] if node.target is leaf else node  # a leaf of what a call returns
    assert isinstance(made, fx.Node)
    read = [each for each in _tensors_of(made, readings) if readings[each].grows and not _counts(readings[each])]
    before = [found[each] for each in read if each in found]
    if not read or len(before) < len(read):
        return not read and made.op != "call_module"  # made from the number of samples alone
    if made.op == "call_module":
        return all(not each % rows or each == 1 for each in before) and rows <= max(before, default=1)
    return rows == 1 or node.target in _JOINING or all(each == rows for each in before)


def _tensors_of(node: fx.Node, readings: Mapping[fx.Node, Reading]) -> list[fx.Node]:
    # The tensors whose values a node reads, also in containers.
    if is_anchor(node):
        return []
    read = [each for each in node.all_input_nodes if each.target is not stand_in]
    tensors = [each for each in read if readings[each].shape is not None]
    rest = [each for each in node.all_input_nodes if readings[each].shape is None]
    return tensors + [other for each in rest for other in _tensors_of(each, readings)]


def _counts(reading: Reading) -> bool:
    # One dimension that is not a multiple of the samples: the ends of the sequences of all samples, from 0.
    return not reading.rows and len(reading.shape or ()) == 1


def _is_plain(node: fx.Node) -> bool:
    writes = node.meta.keys() & {"written_by", "writes"}
    return bool(node.users) and not writes and node.op in ("call_function", "call_method", "call_module")


def _divide(graph: fx.Graph, node: fx.Node, rows: int) -> None:
    readers = [*node.users]
    with graph.inserting_after(node):
        front = graph.call_function(torch.ops.aten.unflatten.int, (node, 0, [-1, rows]))
    with graph.inserting_after(front):
        back = graph.call_function(torch.ops.aten.flatten.using_ints, (front, 0, 1))
    for made in (front, back):
        made.meta["owner"] = node.meta.get("owner", "")
    for reader in readers:
        reader.replace_input_with(node, back)


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
