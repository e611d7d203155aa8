"""Which values of a skeleton may cross from one operator to another, and which are computed where they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from graphpipe.model.capture.module_graph.module_graph import device_of, sample_count
from graphpipe.model.capture.shape_propagation import Reading
from graphpipe.model.torch_private import is_random


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Every node of a skeleton is free, or belongs to one operator."""

    free: frozenset[fx.Node]
    """Model inputs, parameters, and what glue makes of either alone: computed again by every operator that reads it."""
    carried: frozenset[fx.Node]
    """Tensors with samples first, which may cross; everything else stays with the operators that read it."""


def classify(graph: fx.Graph, readings: Mapping[fx.Node, Reading]) -> Values:
    """Return the free and the carried nodes of a skeleton's graph."""
    free: dict[fx.Node, tuple[bool, bool]] = {}  # depends on a model input's values, on a parameter
    for node in graph.nodes:
        if node.op == "output" or "written_by" in node.meta or any(other not in free for other in node.all_input_nodes):
            continue
        by_input, by_parameter = _dependence(node, free)
        if not (by_input and by_parameter) and not is_random(node.target):
            free[node] = (by_input, by_parameter)
    carried = {node for node, reading in readings.items() if reading.sample_shape is not None and node not in free}
    return Values(free=frozenset(free), carried=frozenset(carried))


def _dependence(node: fx.Node, free: Mapping[fx.Node, tuple[bool, bool]]) -> tuple[bool, bool]:
    # The anchors of sample count and device read a model input, but not its values.
    if node.op == "placeholder":
        return True, False
    if is_anchor(node):
        return False, False
    by_input = any(free[other][0] for other in node.all_input_nodes)
    by_parameter = any(free[other][1] for other in node.all_input_nodes)
    return by_input, by_parameter or node.op in ("get_attr", "call_module")


def is_anchor(node: fx.Node) -> bool:
    """True for the nodes that stand for the number of samples and for the device."""
    return node.target in (sample_count, device_of)


def free_needs(nodes: list[fx.Node], free: frozenset[fx.Node]) -> set[fx.Node]:
    """Return the free nodes that `nodes` read, directly or through other free nodes."""
    stack = [other for node in nodes for other in node.all_input_nodes if other in free]
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if not is_anchor(node):
                stack += node.all_input_nodes
    return found
