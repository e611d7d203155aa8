"""Which values may cross from one operator to another, and which every reader computes again."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

from graphpipe.model.capture.module_graph.module_graph import device_of, draws, mode_dropout, sample_count
from graphpipe.model.capture.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingValues:
    """How the values of a module graph reach the operators that read them.

    A value that is in neither set stays inside the one operator that computes and reads it.
    """

    duplicated: frozenset[fx.Node]
    """Nodes that belong to no operator, because every operator that reads them computes them again.

    They are the model inputs, the parameters, and glue that depends on only one of the two kinds. So is cheap glue
    whose value has several readers and may not cross, such as a mask that all layers share. What it reads crosses, or
    is duplicated too.
    """
    crossing: frozenset[fx.Node]
    """Tensors whose first dimension is samples: the values that may be sent from one operator to another."""

    def read_by(self, node: fx.Node) -> list[fx.Node]:
        """Return the values of operators that a node reads, directly or through duplicated nodes."""
        stack, seen, found = [node], {node}, dict[fx.Node, None]()
        while stack:
            each = stack.pop()
            for value in () if is_anchor(each) else each.all_input_nodes:
                if value not in self.duplicated:
                    found[value] = None
                elif value not in seen:
                    seen.add(value)
                    stack.append(value)
        return [*found]


def crossing_values(graph: fx.Graph, readings: Mapping[fx.Node, Reading]) -> CrossingValues:
    """Return the duplicated and the crossing values of a module graph.

    Args:
        graph: of the module.
        readings: of every node.
    """
    samples_first = {node for node, reading in readings.items() if reading.sample_shape is not None}
    duplicated = _duplicated(graph)
    duplicated |= _shared(graph, readings, duplicated, samples_first - duplicated)
    return CrossingValues(duplicated=duplicated, crossing=frozenset(samples_first - duplicated))


def _duplicated(graph: fx.Graph) -> frozenset[fx.Node]:
    found: dict[fx.Node, tuple[bool, bool]] = {}  # whether it depends on values of a model input, and on a parameter
    for node in graph.nodes:
        writes = node.meta.keys() & {"written_by", "writes", "checks"}
        if node.op == "output" or writes or any(each not in found for each in node.all_input_nodes):
            continue
        by_input, by_parameter = _dependence(node, found)
        if not (by_input and by_parameter) and (not draws(node.target) or _keeps_all(node)):
            found[node] = (by_input, by_parameter)
    return frozenset(found)


def _keeps_all(node: fx.Node) -> bool:
    # A dropout of nothing, as of Funnel's table of positions, which all layers read.
    return node.target in (torch.ops.aten.dropout.default, mode_dropout) and not node.args[1]


def _dependence(node: fx.Node, known: Mapping[fx.Node, tuple[bool, bool]]) -> tuple[bool, bool]:
    # The anchors (sample count and device) read a model input, but do not depend on its values.
    if node.op == "placeholder":
        return True, False
    if is_anchor(node):
        return False, False
    by_input = any(known[other][0] for other in node.all_input_nodes)
    by_parameter = any(known[other][1] for other in node.all_input_nodes)
    return by_input, by_parameter or node.op in ("get_attr", "call_module")


def _shared(
    graph: fx.Graph, readings: Mapping[fx.Node, Reading], duplicated: frozenset[fx.Node], crossing: set[fx.Node]
) -> frozenset[fx.Node]:
    # Cheap nodes whose values may not cross, and that several others read. Without them, all readers would be one
    # operator. What they read may cross or is duplicated, so every reader can compute them again. But then all of them
    # get what crosses. So such a node stays with its readers if they can be one operator, as where queries, keys and
    # values of one attention are unpacked.
    cheap: set[fx.Node] = set()
    of_crossing: set[fx.Node] = set()
    for node in graph.nodes:
        available = all(each in duplicated or each in crossing or each in cheap for each in node.all_input_nodes)
        if available and node not in duplicated | crossing and _is_cheap(node, readings[node]):
            cheap.add(node)
            if any(each in crossing or each in of_crossing for each in node.all_input_nodes):
                of_crossing.add(node)
    readers: dict[fx.Node, set[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node in cheap:
            readers[node] = {each for user in node.users for each in (readers[user] if user in cheap else {user})}
    position = {node: number for number, node in enumerate(graph.nodes)}
    return frozenset(
        node
        for node, found in readers.items()
        if len(found) > 1 and (node not in of_crossing or _one_leads_to_another(found, position))
    )


def _one_leads_to_another(nodes: set[fx.Node], position: Mapping[fx.Node, int]) -> bool:
    # Then they cannot be one operator without everything in between.
    last = max(position[node] for node in nodes)
    stack, seen = [user for node in nodes for user in node.users], set[fx.Node]()
    while stack:
        node = stack.pop()
        if node in nodes:
            return True
        if node not in seen and position[node] < last:
            seen.add(node)
            stack += node.users
    return False


def _is_cheap(node: fx.Node, reading: Reading) -> bool:
    if node.op == "call_module":
        return bool(node.meta.get("repeatable")) and not reading.flops
    plain = node.op in ("call_function", "call_method") and "written_by" not in node.meta
    return plain and not reading.flops and not draws(node.target)


def is_anchor(node: fx.Node) -> bool:
    """True for the nodes that compute the number of samples and the device."""
    return node.target in (sample_count, device_of)


def duplicated_inputs(nodes: list[fx.Node], duplicated: frozenset[fx.Node]) -> set[fx.Node]:
    """Return the duplicated nodes that `nodes` read, directly or through other duplicated nodes."""
    stack = [other for node in nodes for other in node.all_input_nodes if other in duplicated]
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if not is_anchor(node):
                stack += [other for other in node.all_input_nodes if other in duplicated]
    return found
