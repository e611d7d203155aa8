"""A backward that is recorded once, without data, and run for any micro-batch whose saved tensors are brought to it.

    where the forward runs      outputs, and the tensors that operations have saved, in order
    here                        the same graph, recorded from zeros: its operations read what was brought

So the halves of a backward can run on other devices than the forward. Nothing is computed again: the graph keeps
shapes and constants, and each of its operations reads its saved tensors where autograd's hooks give them.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from graphpipe.model.halves.current_half import Half, running
from graphpipe.model.halves.saved_layouts import Layout, SavedLayout, saved_layouts
from graphpipe.model.halves.split_backward import RepeatedOperation, WeightHalf
from graphpipe.model.saved_tensors import SavedTensor
from graphpipe.model.split.autograd_graph import AutogradGraph, Edges, autograd_graph, own_backward
from graphpipe.model.torch_private import write_count

Name = TypeVar("Name", bound=Hashable)
Gradients = list[Tensor | None]


def _positions() -> WeakKeyDictionary[SavedTensor, int]:
    return WeakKeyDictionary()


@dataclass(slots=True)
class SavedInOrder:
    """Keeps track of the tensors that a forward saves (a `SavedTensorHandler`), in their order."""

    read: set[int] = field(default_factory=set[int])
    """Positions, in the order of `alive`, of the tensors that were read."""
    _saved: list[tuple[ref[SavedTensor], int]] = field(default_factory=list[tuple[ref[SavedTensor], int]])
    _at: WeakKeyDictionary[SavedTensor, int] = field(default_factory=_positions)

    def on_save(self, saved: SavedTensor) -> None:
        """Note it, and how often its memory was written."""
        assert saved.tensor is not None
        self._saved.append((ref(saved), write_count(saved.tensor)))

    def on_read(self, saved: SavedTensor) -> None:
        """Note that it was read."""
        if (at := self._at.get(saved)) is not None:
            self.read.add(at)

    def alive(self) -> list[SavedTensor]:
        """Return the tensors that graphs refer to. Those of graphs that were dropped meanwhile are not among them."""
        found = [saved for one, _ in self._saved if (saved := one()) is not None]
        for at, saved in enumerate(found):
            self._at[saved] = at
        return found

    def overwritten(self) -> bool:
        """Whether the memory of one of them was written since it was saved."""
        pairs = ((one(), times) for one, times in self._saved)
        return any(
            saved is not None and saved.tensor is not None and write_count(saved.tensor) != n for saved, n in pairs
        )


@dataclass(slots=True, kw_only=True)
class RecordedBackward(Generic[Name]):
    """The backward of one part of a model, for micro-batches of one size."""

    saved: list[SavedTensor]
    layouts: list[SavedLayout]
    """The layouts of the saved tensors, in their order."""
    roots: dict[str, GradientEdge]
    """Where gradients enter: outputs, and perhaps a loss, by name."""
    received: dict[Name, Tensor]
    """Leaves in place of the received values that get a gradient."""
    graph: AutogradGraph
    root_layouts: dict[str, Layout]
    """The layouts of the roots, by name."""
    outputs: dict[int, str] = field(default_factory=dict[int, str])
    """The saved tensors that are outputs, by position, with the names of the roots."""
    input_reads: list[int] = field(default_factory=list[int])
    """Positions of the saved tensors that the input half reads, apart from parameters and repeated ones."""
    weight_reads: list[int] = field(default_factory=list[int])
    """The same of the weight half, which gets also the parameters that it needs."""
    unused: frozenset[int] = frozenset()
    """Positions of parts of parameters that the weight half reads and does not need. An operation reads all that it has
    saved, whichever gradients are wanted."""
    carried: list[Layout | None] = field(default_factory=list[Layout | None])
    """The gradients that the input half leaves to the weight half; None where there is none."""
    _device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _leaving: dict[Node, Edges] = field(default_factory=dict[Node, Edges])
    _arrivals: dict[Node, Edges] = field(default_factory=dict[Node, Edges])

    @staticmethod
    def of(
        roots: Mapping[str, Tensor],
        received: Mapping[Name, Tensor],
        handler: SavedInOrder,
        parameters: Sequence[Tensor],
    ) -> "RecordedBackward[Name]":
        """Return the backward of a forward that was computed with `handler`, and forget its data.

        Args:
            roots: outputs and loss that require a gradient, by name.
            received: leaves, by name. Those that require no gradient are left out.
            handler: has seen all tensors that the forward saved.
            parameters: of the module.
        """
        saved = handler.alive()
        tensors = [each.tensor for each in saved if each.tensor is not None]
        leaves = {name: leaf for name, leaf in received.items() if leaf.requires_grad}
        edges = {name: get_gradient_edge(root) for name, root in roots.items()}
        graph = autograd_graph([*edges.values()], [get_gradient_edge(leaf).node for leaf in leaves.values()])
        made = RecordedBackward(
            saved=saved,
            layouts=saved_layouts(tensors, parameters),
            roots=edges,
            received=leaves,
            graph=graph,
            outputs=outputs_among(tensors, roots),
            root_layouts={name: Layout.of(root) for name, root in roots.items()},
            _device=next((each.device for each in tensors), torch.device("cpu")),
            _leaving=graph.parameter_edges(),
            _arrivals=graph.arrivals(),
        )
        if not made.why_not():
            made._try(roots, handler, parameters)
        for each in saved:
            each.tensor = None
        return made

    @property
    def kept_reads(self) -> list[int]:
        """Positions of the saved tensors that one of the halves reads, apart from parameters and repeated ones."""
        return sorted({*self.input_reads, *(at for at in self.weight_reads if self.layouts[at].parameter is None)})

    def why_not(self) -> str:
        """Return why the halves cannot run on another device than the forward; empty if they can."""
        for node in self.graph.children:
            if name := own_backward(node):
                return f"{name} is a function with its own backward, which may keep more than tensors"
        return self.graph.why_whole(own_backward)

    def first_half(
        self, gradients: Mapping[str, Tensor], kept: Mapping[int, Tensor], parameters: Sequence[Tensor]
    ) -> tuple[dict[Name, Tensor | None], Gradients]:
        """Return the gradients of the received values, and what the weight half needs (see `carried`).

        Args:
            gradients: of the roots that get one, by name.
            kept: what the forward saved, by position.
            parameters: with the values that the forward has read.
        """
        inside = [name for name in self.roots if self.roots[name].node in self.graph.trunk and name in gradients]
        needed, leaves = self._needed(), [get_gradient_edge(leaf) for leaf in self.received.values()]
        found: Sequence[Tensor | None] = [None] * (len(leaves) + len(needed))
        if inside:
            half = Half("input", frozenset(edge for edges in self._leaving.values() for edge in edges))
            self._bring(kept, parameters)
            with running(half):
                found = torch.autograd.grad(
                    [self.roots[name] for name in inside],
                    [*leaves, *needed],
                    [gradients[name] for name in inside],
                    retain_graph=True,
                    allow_unused=True,
                )
            self._forget()
        carried = [*found[len(leaves) :], *(gradients.get(name) for name in self._outside())]
        return dict(zip(self.received, found, strict=False)), carried

    def second_half(self, carried: Gradients, kept: Mapping[int, Tensor]) -> None:
        """Add to the gradients of the parameters, given what the first half has left and `weight_reads`."""
        self._bring(kept, None)
        self._weight_half(carried).run()
        self._forget()

    def gradients_of(
        self, parameters: Sequence[Tensor], carried: Gradients, kept: Mapping[int, Tensor]
    ) -> Sequence[Tensor | None]:
        """Return what the second half would add to the gradients of parameters, and add nothing."""
        self._bring(kept, None)
        found = self._weight_half(carried).of(parameters)
        self._forget()
        return found

    def for_weights(self, kept: Mapping[int, Tensor], parameters: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return what the weight half reads, given what the input half reads."""
        return {at: self._part(at, parameters) if self.layouts[at].parameter else kept[at] for at in self.weight_reads}

    def _try(self, roots: Mapping[str, Tensor], handler: SavedInOrder, parameters: Sequence[Tensor]) -> None:
        # Both halves of a first micro-batch, to see what they read.
        trained = [each for each in parameters if each.requires_grad]
        kept = {at: each.tensor for at, each in enumerate(self.saved) if each.tensor is not None}
        zeros = {name: torch.zeros_like(root) for name, root in roots.items()}
        handler.read.clear()
        _, carried = self.first_half(zeros, kept, parameters)
        own = self._own(handler.read)
        self.input_reads = sorted(at for at in own if self.layouts[at].parameter is None)
        self.carried = [None if each is None else Layout.of(each) for each in carried]
        handler.read.clear()
        self.gradients_of(trained, carried, kept)
        read = self._own(handler.read)
        self.unused = self._unused({at for at in read if self.layouts[at].parameter}, trained, carried, kept)
        self.weight_reads = sorted(read - self.unused)

    def _unused(
        self, parts: set[int], trained: Sequence[Tensor], carried: Gradients, kept: Mapping[int, Tensor]
    ) -> frozenset[int]:
        # Parts of parameters, if NaN in their place changes no gradient.
        if not all(kept[at].is_floating_point() for at in parts):
            return frozenset()
        ones: Gradients = [None if each is None else torch.ones_like(each) for each in carried]
        without = {**kept, **{at: torch.full_like(kept[at], torch.nan) for at in parts}}
        pairs = zip(self.gradients_of(trained, ones, kept), self.gradients_of(trained, ones, without), strict=True)
        same = all(one is other if one is None or other is None else torch.equal(one, other) for one, other in pairs)
        return frozenset(parts) if same else frozenset()

    def _own(self, read: set[int]) -> set[int]:
        return {at if (same := self.layouts[at].same_as) is None else same for at in read}

    def _weight_half(self, carried: Gradients) -> WeightHalf:
        arrived = dict(zip(self._needed(), carried, strict=False))
        repeated: list[RepeatedOperation] = []
        for node, edges in self._leaving.items():
            there = {edge: one for edge in self._arrivals[node] if (one := arrived[edge]) is not None}
            if there:
                gradients = tuple(there.values())
                repeated.append(RepeatedOperation(arrivals=tuple(there), gradients=gradients, parameter_edges=edges))
        outside = [*zip(self._outside(), carried[len(arrived) :], strict=True)]
        return WeightHalf(
            repeated=repeated,
            roots=[self.roots[name] for name, gradient in outside if gradient is not None],
            gradients=[gradient for _, gradient in outside if gradient is not None],
            again=True,
        )

    def _needed(self) -> list[GradientEdge]:
        return [*dict.fromkeys(edge for node in self._leaving for edge in self._arrivals[node])]

    def _outside(self) -> list[str]:
        return [name for name, edge in self.roots.items() if edge.node not in self.graph.trunk]

    def _bring(self, kept: Mapping[int, Tensor], parameters: Sequence[Tensor] | None) -> None:
        # Parameters are read where they are, or were brought with the rest.
        for at, (saved, each) in enumerate(zip(self.saved, self.layouts, strict=True)):
            own = at if each.same_as is None else each.same_as
            held = None if each.parameter is None else parameters
            saved.tensor = kept.get(own) if held is None else self._part(at, held)
            if saved.tensor is None and own in self.unused:
                saved.tensor = torch.zeros((), dtype=each.layout.dtype, device=self._device).expand(each.layout.shape)

    def _part(self, at: int, parameters: Sequence[Tensor]) -> Tensor:
        # A saved tensor that is a part of a parameter.
        each = self.layouts[at]
        assert each.parameter is not None
        home, offset = each.parameter
        whole = parameters[home].detach()
        return whole.as_strided(each.layout.shape, each.layout.strides, whole.storage_offset() + offset)

    def _forget(self) -> None:
        for saved in self.saved:
            saved.tensor = None


def outputs_among(saved: Sequence[Tensor], roots: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the saved tensors that are outputs, by position: those with the memory and layout of a root."""
    names = {(root.data_ptr(), Layout.of(root)): name for name, root in roots.items() if root.numel()}
    found = ((at, names.get((each.data_ptr(), Layout.of(each)))) for at, each in enumerate(saved))
    return {at: name for at, name in found if name is not None}
