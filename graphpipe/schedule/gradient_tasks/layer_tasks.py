"""The tasks of a training step, layer by layer, and what they send each other.

    F0 --> F1 --> F2            F  forward
     |      |      |            I  gradient of the inputs
     v      v      v            W  gradient of the weights, and their update
    W0 <-- I1 <-- I2            I reads gradients of the outputs of its layer, and what the layer's F has kept.
            |      |            W reads what is kept between the two halves of a backward, from I. Where nothing
            v      v              before a layer is trained, there is no I, and W reads what an I would read.
           W1     W2

Without the updates, which may come late, this graph has no cycle. So it can be pipelined like a chain of operators.

Unnikrishnan and Parhi, LayerPipe (2021), treat the two gradients of a layer as independent tasks. That holds for single
operators. A layer with several of them has gradients inside, which I computes, and W reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from graphpipe.costs import CostModel

TaskKind = Literal["F", "I", "W"]


class LayerTask(NamedTuple):
    """A task that is done once for every micro-batch."""

    kind: TaskKind
    layer: int


# No slots: a cached property.
@dataclass(frozen=True, kw_only=True)
class LayerTasks:
    """The tasks of one micro-batch, and the bytes that they send each other."""

    model: CostModel
    micro_batch: int
    """Samples of a micro-batch."""
    micro_batches: int
    """Number of micro-batches in a mini-batch, after which the weights are updated."""
    layers: tuple[tuple[str, ...], ...]
    """The operators of each layer, in topological order."""
    tasks: tuple[LayerTask, ...]
    """The tasks in topological order. A layer has a W if it has weights, and an I if something before it is trained."""
    reads: Mapping[tuple[LayerTask, LayerTask], float]
    """Bytes per micro-batch, by producer and reader."""

    @staticmethod
    def of(model: CostModel, layers: Sequence[tuple[str, ...]], micro_batch: int, batch_size: int) -> "LayerTasks":
        """Return the tasks of these layers.

        Args:
            model: costs of training.
            layers: a partition of the operators, in topological order.
            micro_batch: samples of a micro-batch.
            batch_size: samples of a mini-batch.
        """
        graph, home = model.graph, {op: layer for layer, ops in enumerate(layers) for op in ops}
        sent: dict[tuple[int, int], dict[tuple[str, str], float]] = {}
        for read in graph.reads:
            ends = home[read.source], home[read.target]
            if ends[0] != ends[1]:
                values = sent.setdefault(ends, {})
                values[read.value] = max(values.get(read.value, 0.0), read.bytes_per_sample)
        bytes_of = {ends: micro_batch * sum(values.values()) for ends, values in sent.items()}
        trains = [not graph.differentiable.isdisjoint(ops) for ops in layers]
        back = {ends: count for ends, count in bytes_of.items() if trains[ends[0]]}
        tasks = [LayerTask("F", layer) for layer in range(len(layers))]
        reads = {(LayerTask("F", one), LayerTask("F", other)): count for (one, other), count in bytes_of.items()}
        for layer in (layer for layer in reversed(range(len(layers))) if trains[layer]):
            ops, gradients = layers[layer], list[LayerTask]()
            seconds = model.task_seconds(ops, 0, micro_batch)
            if seconds.input_gradient > 0 or any(other == layer for _, other in back):
                gradients.append(LayerTask("I", layer))
            if seconds.weight_gradient > 0 or model.parameter_bytes.gradients(ops) > 0:
                gradients.append(LayerTask("W", layer))
            kept = micro_batch * model.stage_memory(ops, micro_batch).per_sample
            arriving = {LayerTask("I", other): count for (one, other), count in back.items() if one == layer}
            for first in gradients[:1]:
                reads[LayerTask("F", layer), first] = kept
                reads |= {(other, first): count for other, count in arriving.items()}
            for weights in gradients[1:]:
                between = model.activations(micro_batch).between_halves(ops, micro_batch)
                reads[gradients[0], weights] = micro_batch * (between.own + between.received)
                if not between.has_gradients:  # About as many bytes as those of the layer's outputs.
                    reads[gradients[0], weights] += sum(arriving.values())
            tasks += gradients
        return LayerTasks(
            model=model,
            micro_batch=micro_batch,
            micro_batches=batch_size // micro_batch,
            layers=tuple(layers),
            tasks=tuple(tasks),
            reads=reads,
        )

    def seconds(self, task: LayerTask, device: int) -> float:
        """Return the seconds of a task on a device, without the update."""
        task_seconds = self.model.task_seconds(self.layers[task.layer], device, self.micro_batch)
        seconds = {"F": task_seconds.forward, "I": task_seconds.input_half, "W": task_seconds.weight_half}
        return seconds[task.kind]

    def update_seconds(self, task: LayerTask) -> float:
        """Return the seconds of the update that follows a task after the last micro-batch of a mini-batch."""
        return self.model.optimizer_seconds(self.layers[task.layer]) if task.kind == "W" else 0.0

    def mean_seconds(self, task: LayerTask, device: int) -> float:
        """Return the seconds of a task on a device, with its share of the update."""
        return self.seconds(task, device) + self.update_seconds(task) / self.micro_batches

    def weight_bytes(self, layer: int) -> float:
        """Return the bytes of new weights that a W sends to the devices of its layer's F and I."""
        return self.model.parameter_bytes.gradients(self.layers[layer])

    @cached_property
    def producers(self) -> dict[LayerTask, tuple[LayerTask, ...]]:
        """The tasks that each task reads from."""
        sources: dict[LayerTask, list[LayerTask]] = {task: [] for task in self.tasks}
        for producer, reader in self.reads:
            sources[reader].append(producer)
        return {task: tuple(some) for task, some in sources.items()}
