"""The graph module of a stage or a region. Its constants stay plain tensors, in its copies too."""

from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from torch import fx

from graphpipe.model.torch_private import unregister_buffer

_CONSTANTS = "constants"


@final
class GlueModule(fx.GraphModule):
    """A graph module with constants: tensors that a forward makes, or plain attributes of the user's modules.

    They are neither parameters nor buffers, so they are not in the state, and replicas do not exchange them. fx makes
    buffers of the tensors that a graph reads, when it builds a module and again when it copies one.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> "GlueModule":
        """Return a copy with the same buffers."""
        copied = cast(GlueModule, super().__deepcopy__(memo))
        _unregister(copied)
        return copied


def glue_module(root: Mapping[str, object], graph: fx.Graph, constants: Sequence[str]) -> GlueModule:
    """Return a module that runs a graph.

    Args:
        root: the submodules and tensors that the graph uses, by their targets there.
        graph: to be run.
        constants: the names in `root` of the constants.
    """
    made = GlueModule(dict(root), graph, "Stage")
    made.meta[_CONSTANTS] = tuple(constants)  # fx copies `meta`, and does not copy other attributes
    _unregister(made)
    return made


def constants_of(module: GlueModule) -> tuple[str, ...]:
    """Return the names of a graph module's constants."""
    return module.meta[_CONSTANTS]


def _unregister(module: GlueModule) -> None:
    for name in constants_of(module):
        unregister_buffer(module, name)
