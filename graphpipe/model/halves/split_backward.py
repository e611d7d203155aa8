"""A backward split into two halves: gradients of the received values first, gradients of the parameters later.

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2: earlier stages wait only for the input half (I), so
the weight half (W) can fill a bubble.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from graphpipe.graph.backward_graph import walk
from graphpipe.model.halves.current_half import KEPT, Half, running
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.split.autograd_graph import AutogradGraph, Edges, autograd_graph, own_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedOperation:
    """An operation that ran in the input half, and runs again in the weight half towards its parameters."""

    arrivals: Edges
    gradients: tuple[Tensor, ...]
    """The gradients that have arrived, in the order of the edges where they did."""
    parameter_edges: Edges
    alone: bool = False
    """Whether nothing else leads to its parameters. Then they get its gradients at once, which frees them."""


@dataclass(slots=True, kw_only=True)
class WeightHalf:
    """The half of a backward for the gradients of the parameters. Empty if the input half ran the whole backward."""

    whole: str = ""
    """Why the backward was not split. Empty if it was split."""
    repeated: list[RepeatedOperation] = field(default_factory=list[RepeatedOperation])
    roots: list[GradientEdge] = field(default_factory=list[GradientEdge])
    """Where gradients enter the parts of the graph that lead only to parameters."""
    gradients: list[Tensor] = field(default_factory=list[Tensor])
    """The gradients of the roots, in their order."""
    saved_tensors: ReleasableTensors | None = None
    """The tensors that its operations read."""
    again: bool = False
    """Whether the graph is kept, to be run again."""

    @property
    def waiting(self) -> list[Tensor]:
        """The gradients that it waits with, and what compiled regions have kept for it, besides saved tensors."""
        nodes = [edge.node for operation in self.repeated for edge in operation.arrivals]
        kept = [each for node in nodes for each in getattr(node, KEPT, ()) if isinstance(each, Tensor)]
        return [*kept, *self.gradients, *(each for operation in self.repeated for each in operation.gradients)]

    @property
    def shapes_bytes(self) -> float:
        """Bytes that gradients had of which only the shapes are still needed."""
        gradients = [
            each for operation in self.repeated for each in operation.gradients if each.layout is torch.strided
        ]
        return float(sum(max(0, each.nbytes - each.untyped_storage().nbytes()) for each in gradients))

    def run(self) -> None:
        """Add to the gradients of the parameters as `torch.autograd.backward` does, so that their hooks run."""
        self._repeat(accumulates=True)
        if self.roots:
            torch.autograd.backward(self.roots, self.gradients, retain_graph=self.again)

    def of(self, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return gradients of parameters, None for those that get none. Nothing is added, and no hook runs."""
        self._repeat(accumulates=False)
        if not (self.roots and parameters):
            return [None] * len(parameters)
        return torch.autograd.grad(self.roots, parameters, self.gradients, retain_graph=self.again, allow_unused=True)

    def _repeat(self, *, accumulates: bool) -> None:
        while self.repeated:
            operation = self.repeated.pop()
            found = _repeated(operation, again=self.again)
            if operation.alone and accumulates and found:
                torch.autograd.backward([*found], [*found.values()], retain_graph=self.again)
            else:
                self.roots += found
                self.gradients += found.values()


def _repeated(operation: RepeatedOperation, *, again: bool) -> dict[GradientEdge, Tensor]:
    edges = operation.parameter_edges
    with running(Half("weight", frozenset(edges))):
        gradients = _gradients(operation.arrivals, operation.gradients, edges, again=again)
    return {edge: gradient for edge, gradient in zip(edges, gradients, strict=True) if gradient is not None}


def input_half(
    roots: Sequence[Tensor],
    gradients: Sequence[Tensor],
    received: Sequence[Tensor],
    saved: ReleasableTensors,
    *,
    check: bool,
) -> WeightHalf:
    """Put the gradients of received values into their `grad`, and return the weight half.

    The backward of a graph that cannot be split (see `BackwardGraph.why_whole`) is done whole. If no received value
    needs a gradient, everything is left to the weight half.

    Args:
        roots: outputs and loss. They may be views, because they are not detached.
        gradients: of the roots.
        received: leaves that require a gradient. The `grad` of a leaf that does not lead to a root stays None.
        saved: tensors that the forward saved. The tensors that the weight half does not need are released.
        check: assert that the two halves together reach every parameter.
    """
    edges = [get_gradient_edge(root) for root in roots]
    leaves = [get_gradient_edge(leaf) for leaf in received]
    graph = autograd_graph(edges, [leaf.node for leaf in leaves])
    if reason := graph.why_whole(own_backward):
        torch.autograd.backward(roots, gradients)
        return WeightHalf(whole=reason)
    if check:
        graph.check_complete()
    leaving, arrivals = graph.parameter_edges(), graph.arrivals()
    inside = [n for n, edge in enumerate(edges) if edge.node in graph.trunk]
    outside = [n for n, edge in enumerate(edges) if edge.node not in graph.trunk]
    arrived: dict[GradientEdge, Tensor | None] = {}
    if inside:
        needed = [*dict.fromkeys(edge for node in leaving for edge in arrivals[node])]
        inner_edges, inner_gradients = [edges[n] for n in inside], [gradients[n] for n in inside]
        outwards = frozenset(edge for outward in leaving.values() for edge in outward)
        with running(Half("input", outwards, frozenset(leaving), saved.spare)):
            computed = _gradients(inner_edges, inner_gradients, [*leaves, *needed], again=True)
        for leaf, gradient in zip(received, computed, strict=False):
            leaf.grad = gradient
        arrived = dict(zip(needed, computed[len(leaves) :], strict=True))
        saved.release_unless_read_by(leaving.keys())
    return WeightHalf(
        repeated=_operations(leaving, arrivals, arrived, saved.take_spared(), _alone(graph, leaving)),
        roots=[edges[n] for n in outside],
        gradients=[gradients[n] for n in outside],
        saved_tensors=saved,
    )


def _operations(
    leaving: dict[Node, Edges],
    arrivals: dict[Node, Edges],
    arrived: dict[GradientEdge, Tensor | None],
    spared: Collection[Node],
    alone: Collection[Node],
) -> list[RepeatedOperation]:
    operations: list[RepeatedOperation] = []
    for node, edges in leaving.items():
        there = {edge: gradient for edge in arrivals[node] if (gradient := arrived[edge]) is not None}
        if node in spared:
            there = {edge: gradient.new_zeros(()).expand_as(gradient) for edge, gradient in there.items()}
        if there:
            gradients = tuple(there.values())
            operations.append(
                RepeatedOperation(
                    arrivals=tuple(there), gradients=gradients, parameter_edges=edges, alone=node in alone
                )
            )
    return operations


def _alone(graph: AutogradGraph, leaving: dict[Node, Edges]) -> set[Node]:
    # Operations whose parts of the graph below their parameter edges belong to no other.
    outside = [root for root in graph.roots if root.node not in graph.trunk]
    below = {node: walk(edges, graph.children.__getitem__) for node, edges in leaving.items()}
    times = Counter(chain(walk(outside, graph.children.__getitem__), *below.values()))
    return {node for node, reached in below.items() if all(times[each] == 1 for each in reached)}


def _gradients(
    roots: Sequence[GradientEdge], gradients: Sequence[Tensor], wanted: Sequence[GradientEdge], *, again: bool
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(roots, wanted, gradients, retain_graph=again, allow_unused=True)


def why_whole(roots: Sequence[Tensor], received: Sequence[Tensor]) -> str:
    """Return why the backward of roots cannot be split (see `BackwardGraph.why_whole`); empty if it can."""
    leaves = [get_gradient_edge(leaf).node for leaf in received]
    return autograd_graph([get_gradient_edge(root) for root in roots], leaves).why_whole(own_backward)
