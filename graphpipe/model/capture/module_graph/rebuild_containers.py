"""Arguments of a call whose containers fx cannot represent: a node right before the call builds each of them."""

from typing import Any

from torch import fx

from graphpipe.model.torch_private import TreeSpec, flatten, unflatten

_REPRESENTABLE = (tuple, list, dict)


class BuildContainer:
    """A function that fx can call and name: builds one container, such as a dataclass or a ModelOutput."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec
        self.__name__ = self.__qualname__ = "container"

    def __repr__(self) -> str:
        """Return the same text for the same container."""
        return f"container({self.spec})"

    def __call__(self, *leaves: object) -> Any:
        """Return the container with these leaves."""
        return unflatten(leaves, self.spec)


def rebuild_containers(graph: fx.Graph, arguments: Any, owner: str) -> Any:
    """Return arguments in which a node builds every container that has nodes and that fx cannot represent.

    Args:
        graph: gets these nodes.
        arguments: nested containers of nodes and constants.
        owner: the module whose forward contains the call.
    """
    parts, spec = flatten(arguments, _needs_a_node)
    return unflatten([_node(graph, part, owner) if _needs_a_node(part) else part for part in parts], spec)


def _needs_a_node(part: object) -> bool:
    # fx turns subclasses of dict into dicts, and does not look into other containers. One without nodes is a constant.
    if type(part) in _REPRESENTABLE or isinstance(part, fx.Node | tuple):
        return False
    leaves, spec = flatten(part)
    return not spec.is_leaf() and any(isinstance(leaf, fx.Node) for leaf in leaves)


def _node(graph: fx.Graph, part: object, owner: str) -> fx.Node:
    leaves, spec = flatten(part)
    node = graph.call_function(BuildContainer(spec), tuple(leaves))
    node.meta["owner"] = owner
    return node
