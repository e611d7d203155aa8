"""Where a node stands in a captured graph: what it computes from what, without names and sizes.

Captures of one model for inputs of other shapes may number their nodes differently: one of them may have been made with
labels. The places are the same.
"""

import operator
from collections import Counter
from dataclasses import dataclass, field

from torch import fx

from graphpipe.model.capture.capture import Captured
from graphpipe.model.torch_private import leaf

_CONVERSIONS = ("aten.to.", "aten._to_copy.", "aten.type_as.")
_TAKING = (operator.getitem, leaf)
"""Functions whose second argument says which value they take."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The place of a node. Places in captures of one model are equal if both nodes compute the same."""

    key: int
    """Follows from what the node calls, and from the keys of what it reads. Conversions of types do not change it."""
    number: int
    """Counts the nodes with this key before it."""
    converts: bool = field(compare=False)
    """Whether it only converts a tensor to another type."""
    name: str = field(compare=False)
    """For messages."""


def node_places(captured: Captured) -> dict[fx.Node, NodePlace]:
    """Return the place of every node of a captured graph."""
    constants = captured.module_graph.constants
    inputs = {node: name for name, node in captured.module_graph.inputs.items()}
    keys: dict[fx.Node, int] = {}
    """Of what a node returns, whatever its type."""
    counts: Counter[int] = Counter()
    places: dict[fx.Node, NodePlace] = {}
    for node in captured.module_graph.graph.nodes:
        converts = node.op == "call_function" and str(node.target).startswith(_CONVERSIONS)
        target = inputs.get(node, "constant" if node.target in constants else str(node.target))
        taken = node.args[1] if node.target in _TAKING else None
        owner = node.meta.get("owner", "")
        key = hash((node.op, target, owner, taken, *(keys[other] for other in node.all_input_nodes)))
        keys[node] = keys[node.all_input_nodes[0]] if converts else key
        places[node] = NodePlace(key, counts[key], converts, node.name)
        counts[key] += 1
    return places
