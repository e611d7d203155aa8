"""What each message between the devices of some rounds holds, and in which layout.

F to F  values            F to I  what the forward has saved       I to I  gradients of received values
W to F and I  weights     I to W  gradients inside the layer, and what the weight half reads
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from graphpipe.model.halves.recorded_backward import RecordedBackward
from graphpipe.model.halves.saved_layouts import Layout
from graphpipe.plans import Plan
from graphpipe.run.rounds.layer_copy import LayerCopy, Received
from graphpipe.run.stage.edge_values import EdgeSpecs
from graphpipe.schedule.gradient_tasks.layer_tasks import LayerTask
from graphpipe.schedule.gradient_tasks.rounds import Rounds

Item: TypeAlias = tuple[str, int | str] | tuple[str, int, str]
"""What a tensor is: `value` and its name, `gradient`, its edge and name, or `kept`, `carried` or `weight` and its
position."""
Results: TypeAlias = Mapping[Item, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Finds what one task sends to a device; both ends find the same."""

    rounds: Rounds
    plan: Plan
    """Has each layer as a stage."""
    layers: Mapping[tuple[int, int], LayerCopy]
    """The layers of this rank, by number and device."""
    specs: EdgeSpecs
    samples: int
    """Of a micro-batch."""

    def of(self, task: LayerTask, target: int) -> dict[Item, Layout]:
        """Return what a task sends to a device, in order."""
        match task.kind:
            case "F":
                return dict(self._of_forward(task.layer, target))
            case "I":
                return dict(self._of_input_gradient(task.layer, target))
            case "W":
                parameters = self._copy(task.layer).trained
                return {("weight", at): Layout.of(each) for at, each in enumerate(parameters)}

    def first_gradient(self, layer: int) -> LayerTask | None:
        """Return the task where the backward of a layer begins; None if it is not trained."""
        tasks = (LayerTask("I", layer), LayerTask("W", layer))
        return next((task for task in tasks if task in self.rounds.device_of), None)

    def _of_forward(self, layer: int, target: int) -> Iterator[tuple[Item, Layout]]:
        values: set[str] = set()
        for number, edge in enumerate(self.plan.edges):
            if edge.source == layer and self.rounds.device_of[LayerTask("F", edge.target)] == target:
                for spec in self.specs[number]:
                    values.add(spec.name)
                    yield ("value", spec.name), self._rows(spec.sample_shape, spec.dtype)
        first = self.first_gradient(layer)
        if first is not None and self.rounds.device_of[first] == target:
            recorded = self._recorded(layer)
            reads = recorded.weight_reads if first.kind == "W" else recorded.kept_reads
            reads = [at for at in reads if recorded.outputs.get(at) not in values]
            yield from ((("kept", at), recorded.layouts[at].layout) for at in reads)

    def _of_input_gradient(self, layer: int, target: int) -> Iterator[tuple[Item, Layout]]:
        for number, edge in enumerate(self.plan.edges):
            reader = self.first_gradient(edge.source) if edge.target == layer else None
            if reader is not None and self.rounds.device_of[reader] == target:
                for spec in self.specs[number]:
                    if spec.requires_grad:
                        yield ("gradient", number, spec.name), self._rows(spec.sample_shape, spec.dtype)
        if self.rounds.device_of.get(LayerTask("W", layer)) == target:
            recorded = self._recorded(layer)
            for at, layout in enumerate(recorded.carried):
                if layout is not None:
                    yield ("carried", at), layout
            yield from ((("kept", at), recorded.layouts[at].layout) for at in recorded.weight_reads)

    def _rows(self, sample_shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        shape, strides = (self.samples, *sample_shape), [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        return Layout(shape, tuple(strides), dtype)

    def _copy(self, layer: int) -> LayerCopy:
        return next(copy for (number, _), copy in self.layers.items() if number == layer)

    def _recorded(self, layer: int) -> RecordedBackward[Received]:
        recorded = self._copy(layer).recorded
        assert recorded is not None, "the layer is trained, and one end of its messages is here"
        return recorded
