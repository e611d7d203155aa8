"""A backward split into two halves: gradients of the received values first, gradients of the parameters later.

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2: earlier stages wait only for the input half (I), so
the weight half (W) can fill a bubble.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from graphpipe.model.halves.current_half import Half, running
from graphpipe.model.halves.releasable_tensors import ReleasableTensors
from graphpipe.model.split.autograd_graph import Edges, autograd_graph, own_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedOperation:
    """An operation that ran in the input half, and runs again in the weight half towards its parameters."""

    arrivals: Edges
    gradients: tuple[Tensor, ...]
    """The gradients that have arrived, in the order of the edges where they did."""
    parameter_edges: Edges


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

    def run(self) -> None:
        """Add to the gradients of the parameters as `torch.autograd.backward` does, so that their hooks run."""
        self._repeat()
        if self.roots:
            torch.autograd.backward(self.roots, self.gradients, retain_graph=self.again)

    def of(self, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return gradients of parameters, None for those that get none. Nothing is added, and no hook runs."""
        self._repeat()
        if not (self.roots and parameters):
            return [None] * len(parameters)
        return torch.autograd.grad(self.roots, parameters, self.gradients, retain_graph=self.again, allow_unused=True)

    def _repeat(self) -> None:
        while self.repeated:
            operation = self.repeated.pop()
            edges = operation.parameter_edges
            with running(Half("weight", frozenset(edges))):
                gradients = _gradients(operation.arrivals, operation.gradients, edges, again=self.again)
            for edge, gradient in zip(edges, gradients, strict=True):
                if gradient is not None:
                    self.roots.append(edge)
                    self.gradients.append(gradient)


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
        with running(Half("input", frozenset(edge for outward in leaving.values() for edge in outward), saved.spare)):
            computed = _gradients(inner_edges, inner_gradients, [*leaves, *needed], again=True)
        for leaf, gradient in zip(received, computed, strict=False):
            leaf.grad = gradient
        arrived = dict(zip(needed, computed[len(leaves) :], strict=True))
        saved.release_unless_read_by(leaving.keys())
    return WeightHalf(
        repeated=_repeated(leaving, arrivals, arrived, saved.take_spared()),
        roots=[edges[n] for n in outside],
        gradients=[gradients[n] for n in outside],
        saved_tensors=saved,
    )


def _repeated(
    leaving: dict[Node, Edges],
    arrivals: dict[Node, Edges],
    arrived: dict[GradientEdge, Tensor | None],
    spared: Collection[Node],
) -> list[RepeatedOperation]:
    operations: list[RepeatedOperation] = []
    for node, edges in leaving.items():
        there = {edge: gradient for edge in arrivals[node] if (gradient := arrived[edge]) is not None}
        if node in spared:
            there = {edge: gradient.new_zeros(()).expand_as(gradient) for edge, gradient in there.items()}
        if there:
            operations.append(
                RepeatedOperation(arrivals=tuple(there), gradients=tuple(there.values()), parameter_edges=edges)
            )
    return operations


def _gradients(
    roots: Sequence[GradientEdge], gradients: Sequence[Tensor], wanted: Sequence[GradientEdge], *, again: bool
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(roots, wanted, gradients, retain_graph=again, allow_unused=True)


def why_whole(roots: Sequence[Tensor], received: Sequence[Tensor]) -> str:
    """Return why the backward of roots cannot be split (see `BackwardGraph.why_whole`); empty if it can."""
    leaves = [get_gradient_edge(leaf).node for leaf in received]
    return autograd_graph([get_gradient_edge(root) for root in roots], leaves).why_whole(own_backward)
