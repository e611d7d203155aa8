"""The backward of a compiled region, which runs whole or in the halves of a split backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, fx
from torch.autograd.graph import GradientEdge, Node

from graphpipe.model.compiled.halved_graph import HalvedGraph, halve
from graphpipe.model.halves.current_half import KEPT, Half, running_half
from graphpipe.model.torch_private import current_backward_node, memory_key

Compiled = Callable[[list[Any]], Sequence[Any]]
"""Takes its arguments in a list, which it empties."""
Compile = Callable[[fx.GraphModule], Compiled]


@dataclass(frozen=True, slots=True)
class _Halves:
    graph: HalvedGraph
    input_half: Compiled
    weight_half: Compiled


@final
@dataclass(slots=True)
class HalvedBackward:
    """Computes the gradients of a region's arguments. It is compiled for each way in which it is called."""

    module: fx.GraphModule
    """The graph of the whole backward."""
    compile: Compile
    """Compiles a graph."""
    tensors: Sequence[int]
    """The places of tensors among the arguments of the forward. Only these have edges in autograd's graph."""
    _whole: Compiled | None = None
    _halves: dict[frozenset[int], _Halves] = field(default_factory=dict[frozenset[int], _Halves])

    def __call__(self, arguments: list[Any]) -> Sequence[Tensor | None]:
        """Return a gradient for each argument of the forward; None for those that the running half does not want."""
        half, node = running_half(), current_backward_node()
        if half is None or node is None or not (parameters := self._parameters(half, node)):
            if self._whole is None:
                self._whole = self.compile(self.module)
            return self._whole(arguments)
        if parameters not in self._halves:
            graph = halve(self.module, parameters)
            self._halves[parameters] = _Halves(graph, self.compile(graph.input_half), self.compile(graph.weight_half))
        halves = self._halves[parameters]
        if half.kind == "input":
            made = [*halves.input_half([*arguments])]
            setattr(node, KEPT, made[len(made) - halves.graph.kept :])
            later = [arguments[place] for place in halves.graph.reads]
            half.spare(node, {memory_key(each) for each in later if isinstance(each, Tensor)})
            arguments.clear()
            return made[: len(made) - halves.graph.kept]
        given = [*getattr(node, KEPT), *(arguments[place] for place in halves.graph.reads)]
        delattr(node, KEPT)
        arguments.clear()
        return halves.weight_half(given)

    def _parameters(self, half: Half, node: Node) -> frozenset[int]:
        edges = [child and GradientEdge(child, slot) for child, slot in node.next_functions]
        if len(edges) != len(self.tensors):
            return frozenset()  # Then both halves run the whole backward, and autograd takes what it needs of each.
        return frozenset(place for place, edge in zip(self.tensors, edges, strict=True) if edge in half.parameter_edges)
