"""The bytes of every operator, as arrays in the order of `graph.ops`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_cost import SavedBytes, Temporaries
from graphpipe.graph import Graph, Op

Array = NDArray[np.float64]
Found = TypeVar("Found")
State = Literal["whole", "optimizer", "all", "layers"]
"""What the replicas of a stage shard: nothing, the optimizer's state (ZeRO-1), or, between steps, also the weights and
gradients (FSDP2). With `layers` these are whole only while a layer computes. Parameters that other stages hold too stay
whole."""
GATHERED_LAYERS = 4
"""What a replica holds of the largest layer while layers are gathered one by one: its weights and those of the next
one, its gradients, and the buffer of one exchange, each as large as its weights."""


# No slots: arrays and sums are cached.
@dataclass(frozen=True)
class OpBytes:
    """Bytes that each operator holds, from the cost table and the graph.

    What an operator with a load computes and saves is counted for the largest load, so that no batch needs more. What
    operators pass on has the size that the graph says.
    """

    graph: Graph
    table: CostTable
    device_types: tuple[str, ...]
    """The types of the cluster's devices, in order of their names."""
    trains: bool
    """Whether operators train. For inference, a parameter does not have a gradient, and an operator saves nothing."""

    def positions(self, ops: Iterable[str]) -> NDArray[np.intp]:
        """Return the positions of the operators in `graph.ops`."""
        return np.array([self.graph.index[name] for name in ops], dtype=np.intp)

    @cached_property
    def _known(self) -> dict[tuple[object, ...], Any]:
        return {}

    def once(self, key: tuple[object, ...], compute: Callable[[], Found]) -> Found:
        """Return what belongs to the operators of a stage, computed once: most stages of a plan are stages of others.

        Args:
            key: the kind of what is computed, then all that it depends on.
            compute: returns it.
        """
        if (known := self._known.get(key)) is None:
            known = self._known[key] = compute()
        return known

    @cached_property
    def parameters(self) -> Array:
        """Bytes of parameters."""
        return np.array([op.parameter_bytes for op in self.graph.ops])

    @cached_property
    def trainable(self) -> Array:
        """Bytes of parameters that have a gradient to synchronise."""
        return np.array([op.parameter_bytes if self.trains and op.trainable else 0.0 for op in self.graph.ops])

    @cached_property
    def least_trainable(self) -> Array:
        """`trainable`, with every shared parameter counted at one of its operators.

        The sum over any operators is a lower bound on the gradients of a stage that holds them.
        """
        trainable = self.trainable.copy()
        for parameter in (parameter for parameter in self.graph.shared if self.trains and parameter.trainable):
            trainable[self.positions(self.graph.holders[parameter.name][1:])] -= parameter.bytes
        return trainable

    @cached_property
    def state(self) -> Array:
        """Bytes of parameters, gradients and optimizer state."""
        frozen = self.parameters - self.trainable
        return self.trainable * self.table.state_bytes_per_parameter_byte + frozen

    @cached_property
    def least_state(self) -> Array:
        """`state`, with every shared parameter counted at one of its operators."""
        repeated = self.trainable - self.least_trainable
        return self.state - repeated * self.table.state_bytes_per_parameter_byte

    @property
    def slots_per_byte(self) -> float:
        """Bytes of optimizer state per byte of trainable parameters, beside the weights and the gradients."""
        return max(0.0, self.table.state_bytes_per_parameter_byte - 2.0)

    def held(self, state: State, degree: int) -> Array:
        """Return the bytes of `state` on each of `degree` replicas, if they share out every operator equally.

        Sums over a stage are at most `ParameterBytes.held`, if no parameter is tied.
        """
        if state == "whole" or degree == 1:
            return self.state
        slots = self.slots_per_byte * self.trainable
        if state == "optimizer":
            return self.state - slots * (1 - 1 / degree)
        if state == "layers":  # without the layers that compute
            return (self.parameters + self.trainable + slots) / degree
        return 2 * self.parameters + (self.parameters + slots) / degree

    def least_held(self, degree: int) -> Array:
        """Return `least_state` on each of `degree` replicas, if they shard as much as planners choose."""
        return self.least_state - self.slots_per_byte * self.least_trainable * (1 - 1 / degree)

    @cached_property
    def saved(self) -> Array:
        """Bytes that each operator keeps per sample in flight, of the largest load.

        At the operator that computes the model's result, what the loss function keeps is included.
        """
        if not self.trains:
            return np.zeros(len(self.graph.ops))
        loss = [max((row.loss_bytes_per_sample for row in rows), default=0.0) for rows in self.temporaries]
        own = np.array([each.per_sample for each in self._measured_or_counted]) + np.array(loss)
        return own * np.array([self.largest_load[op.name] for op in self.graph.ops])

    def saved_of(self, samples: Array | float) -> Array:
        """Return `saved` with what each forward keeps besides, shared out over its samples.

        Args:
            samples: of one micro-batch on one device; or an array of them, whose last dimensions the result has too.
        """
        every = (-1, *[1] * np.ndim(samples))
        saved = self.saved.reshape(every)
        return saved + self.saved_by_forward.reshape(every) / samples if self.has_casts else saved

    @cached_property
    def has_casts(self) -> bool:
        """Whether a forward keeps something that does not depend on its samples, such as casts of weights."""
        return bool(self.saved_by_forward.any())

    @cached_property
    def saved_by_forward(self) -> Array:
        """Bytes that each operator keeps per micro-batch in flight, besides those of the samples."""
        return np.array([each.per_forward if self.trains else 0.0 for each in self._measured_or_counted])

    @cached_property
    def _measured_or_counted(self) -> list[SavedBytes]:
        """What each operator saves for its backward. With several device types, the largest values count."""
        return [self._saved_by(op) for op in self.graph.ops]

    def _saved_by(self, op: Op) -> SavedBytes:
        counted = SavedBytes(per_sample=op.work.saved_bytes_per_sample, per_forward=op.work.saved_bytes_per_forward)
        found = [self.table.by_op[op.name, kind].saved or counted for kind in self.device_types]
        return SavedBytes(
            per_sample=max(each.per_sample for each in found), per_forward=max(each.per_forward for each in found)
        )

    def between_halves_of(self, samples: float) -> Array:
        """Return the bytes that each operator keeps per sample from the end of the first half of a split backward to
        the end of the second one.

        If they were not measured, they are estimated. What an operator with trained parameters saves beyond its
        outputs stays, and so do the gradients of its outputs. Its outputs stay if an operator with trained parameters
        reads them. A table that says which share of all saved bytes stays is believed instead.

        Args:
            samples: of one micro-batch on one device.
        """
        if (share := self.table.kept_for_weight_gradient) is not None:
            return self.saved_of(samples) * share
        if not self.trains:
            return np.zeros(len(self.graph.ops))
        loads = np.array([self.largest_load[op.name] for op in self.graph.ops])
        each, once = self._between_halves
        return each * loads + once / samples

    @cached_property
    def _between_halves(self) -> tuple[Array, Array]:
        # By operator, per sample and per micro-batch. With several device types, the largest values count.
        found: list[tuple[float, float]] = []
        for op in self.graph.ops:
            rows = [self.table.by_op[op.name, kind].between_halves for kind in self.device_types]
            known = [row or self._estimated_between_halves(op) for row in rows]
            found.append((max(row.per_sample for row in known), max(row.per_forward for row in known)))
        each, once = np.array(found).reshape(-1, 2).T
        return each, once

    def _estimated_between_halves(self, op: Op) -> SavedBytes:
        saved, readers = self._saved_by(op), self.graph.successors[op.name]
        outputs = min(saved.per_sample, op.output_bytes_per_sample)
        kept = outputs if not self.graph.training.isdisjoint(readers) else 0.0
        if op.name not in self.graph.training:
            return SavedBytes(per_sample=kept)
        arriving = self.returned_gradient[op.name] if readers else op.output_bytes_per_sample
        return SavedBytes(per_sample=kept + saved.per_sample - outputs + arriving, per_forward=saved.per_forward)

    @cached_property
    def largest_load(self) -> dict[str, float]:
        """The largest load of a sample, by operator."""
        loads = {op.name: 1.0 for op in self.graph.ops}
        return loads | {op: load.largest for load in self.table.loads for op in load.ops}

    @cached_property
    def returned_gradient(self) -> dict[str, float]:
        """Bytes per sample of the gradient of those outputs of an operator that others read, by operator."""
        largest: dict[tuple[str, str], float] = {}
        for read in self.graph.reads:
            if read.value not in self.graph.one_way:
                largest[read.value] = max(largest.get(read.value, 0.0), read.bytes_per_sample)
        bytes_by_op = {op.name: 0.0 for op in self.graph.ops}
        for (source, _), count in largest.items():
            bytes_by_op[source] += count
        return bytes_by_op

    @cached_property
    def temporaries(self) -> list[list[Temporaries]]:
        """What each operator holds while it runs, one row per device type; empty if it was not measured."""
        rows = [[self.table.by_op[op.name, kind].temporaries for kind in self.device_types] for op in self.graph.ops]
        return [[cell for cell in row if cell is not None] for row in rows]

    @cached_property
    def has_temporaries(self) -> bool:
        """Whether the table records what operators hold while they run. Profiled tables do."""
        return any(self.temporaries)

    def temporary(self, samples: float) -> Array:
        """Return the most bytes that each operator holds only while its forward or backward runs; 0 if unknown.

        The gradient that arrives is included. With several device types, the largest value counts. A device runs one
        task at a time, so it needs at most the bytes of the operator that holds most (see `TaskMemory`).
        """
        if samples not in self._temporary:
            rows = zip(self.graph.ops, self.temporaries, strict=True)
            largest = [max((self._largest(op.name, cell, samples) for cell in held), default=0.0) for op, held in rows]
            self._temporary[samples] = np.array(largest)
        return self._temporary[samples]

    @cached_property
    def _temporary(self) -> dict[float, Array]:
        return {}

    def _largest(self, op: str, held: Temporaries, samples: float) -> float:
        computed = samples * self.largest_load[op]
        if not self.trains:
            return held.forward(computed)
        return max(held.forward(computed), held.backward(computed) + self.returned_gradient[op] * samples)
