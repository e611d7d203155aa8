"""The backward of a micro-batch in two halves: gradients of what was received first, those of the parameters later.

Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), section 2: the input half (I) is all that the stages before
wait for; the weight half (W) goes where a bubble would be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from graphpipe.model.split.backward_graph import BackwardGraph, Edges
from graphpipe.run.stage.releasable_tensors import Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """An operation to be run for its twigs."""

    arrivals: Edges
    gradients: tuple[Tensor, ...]
    """What has arrived, by each of `arrivals`."""
    twigs: Edges


@dataclass(slots=True, kw_only=True)
class WeightHalf:
    """What remains to be done for the gradients of the parameters; nothing, if the backward was done whole."""

    whole: str = ""
    """Why there is nothing to do; empty if there may be."""
    forks: list[Fork] = field(default_factory=list[Fork])
    roots: list[GradientEdge] = field(default_factory=list[GradientEdge])
    """Where gradients enter that concern parameters alone."""
    gradients: list[Tensor] = field(default_factory=list[Tensor])
    """By each of `roots`."""
    shelf: Shelf | None = None
    """Holds what it reads."""

    def run(self) -> None:
        """Add the gradients to the parameters', as `torch.autograd.backward` does: their hooks fire."""
        while self.forks:
            fork = self.forks.pop()
            found = _gradients(fork.arrivals, fork.gradients, fork.twigs, again=False)
            for twig, gradient in zip(fork.twigs, found, strict=True):
                if gradient is not None:
                    self.roots.append(twig)
                    self.gradients.append(gradient)
        if self.roots:
            torch.autograd.backward(self.roots, self.gradients)


def input_half(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], received: Sequence[Tensor], shelf: Shelf, *, check: bool
) -> WeightHalf:
    """Put the gradients of received values into their `grad`, and return what remains to be done.

    A graph that cannot be cut (see `BackwardGraph.why_whole`) is done whole. Where nothing received needs a gradient,
    all remains for the weight half.

    Args:
        roots: outputs and loss; views too, nothing is detached.
        gradients: of the roots.
        received: leaves that require a gradient; one that no root depends on gets none.
        shelf: holds what the forward saved; afterwards only what the weight half needs.
        check: assert that the halves leave no parameter out.
    """
    edges = [get_gradient_edge(root) for root in roots]
    leaves = [get_gradient_edge(leaf) for leaf in received]
    graph = BackwardGraph.of(edges, [leaf.node for leaf in leaves])
    if reason := graph.why_whole():
        torch.autograd.backward(roots, gradients)
        return WeightHalf(whole=reason)
    if check:
        graph.check_complete()
    forks, arrivals = graph.forks(), graph.arrivals()
    inside = [n for n, edge in enumerate(edges) if edge.node in graph.trunk]
    outside = [n for n, edge in enumerate(edges) if edge.node not in graph.trunk]
    arrived: dict[GradientEdge, Tensor | None] = {}
    if inside:
        wanted = [*dict.fromkeys(edge for node in forks for edge in arrivals[node])]
        places = [edges[n] for n in inside], [gradients[n] for n in inside]
        found = _gradients(*places, [*leaves, *wanted], again=True)
        for leaf, gradient in zip(received, found, strict=False):
            leaf.grad = gradient
        arrived = dict(zip(wanted, found[len(leaves) :], strict=True))
        shelf.keep_for(forks.keys())
    return WeightHalf(
        forks=[fork for node, twigs in forks.items() if (fork := _fork(arrivals[node], twigs, arrived))],
        roots=[edges[n] for n in outside],
        gradients=[gradients[n] for n in outside],
        shelf=shelf,
    )


def _fork(arrivals: Edges, twigs: Edges, arrived: dict[GradientEdge, Tensor | None]) -> Fork | None:
    there = [(edge, gradient) for edge in arrivals if (gradient := arrived[edge]) is not None]
    if not there:
        return None
    return Fork(arrivals=tuple(e for e, _ in there), gradients=tuple(g for _, g in there), twigs=twigs)


def _gradients(
    roots: Sequence[GradientEdge], gradients: Sequence[Tensor], wanted: Sequence[GradientEdge], *, again: bool
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(roots, wanted, gradients, retain_graph=again, allow_unused=True)
