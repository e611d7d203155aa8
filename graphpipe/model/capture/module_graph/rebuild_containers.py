"""Containers in the arguments of a call: those that fx does not carry are put together right before it."""

from typing import Any

from torch import fx

from graphpipe.model.torch_private import TreeSpec, flatten, flatten_unless, unflatten

_CARRIED = (tuple, list, dict)


class Carrier:
    """A function that fx can call and name: puts leaves into a container, as a dataclass or a ModelOutput."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec
        self.__name__ = self.__qualname__ = "carried"

    def __repr__(self) -> str:
        """Return the same for the same container."""
        return f"carried({self.spec})"

    def __call__(self, *leaves: object) -> Any:
        """Return the container."""
        return unflatten(leaves, self.spec)


def carried(graph: fx.Graph, arguments: Any, owner: str) -> Any:
    """Return arguments that fx can carry: a node in place of every container with nodes that is of another type.

    Args:
        graph: to be called in.
        arguments: nested containers of nodes and constants.
        owner: the module in whose forward the call stands.
    """
    parts, spec = flatten_unless(arguments, _is_strange)
    return unflatten([_node(graph, part, owner) if _is_strange(part) else part for part in parts], spec)


def _is_strange(part: object) -> bool:
    # fx makes dicts of their subclasses, and looks into no other container; what holds no node may stay as it is.
    if type(part) in _CARRIED or isinstance(part, fx.Node | tuple):
        return False
    leaves, spec = flatten(part)
    return not spec.is_leaf() and any(isinstance(leaf, fx.Node) for leaf in leaves)


def _node(graph: fx.Graph, part: object, owner: str) -> fx.Node:
    leaves, spec = flatten(part)
    node = graph.call_function(Carrier(spec), tuple(leaves))
    node.meta["owner"] = owner
    return node
