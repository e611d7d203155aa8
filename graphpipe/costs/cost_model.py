"""The one look-up for every cost: planners, verifier-fed predictions and simulator all ask here."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from graphpipe.cluster.cluster import Cluster, slowest_seconds
from graphpipe.costs.cost_table import CostTable, Curve, Temporaries
from graphpipe.costs.recompute_regions import Recompute, regions
from graphpipe.graph import Graph

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """Seconds of one stage's tasks for one micro-batch on one device."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def backward(self) -> float:
        """The fused backward: input and weight gradient in one pass."""
        return self.input_gradient + self.weight_gradient


# No slots: look-ups are cached.
@dataclass(frozen=True)
class CostModel:
    """A graph's costs on a cluster.

    Raises:
        InvalidInput: the table was made for another graph or lacks a device type of the cluster.
    """

    graph: Graph
    table: CostTable
    cluster: Cluster

    @staticmethod
    def of(graph: Graph, table: CostTable, cluster: Cluster) -> "CostModel":
        """Return the model of these very values: one for all the plans of a search, so that each cost is found once."""
        key = id(graph), id(table), id(cluster)  # Not of other values: a model that is known keeps its own alive.
        if (known := _KNOWN.get(key)) is None:
            known = _KNOWN[key] = CostModel(graph, table, cluster)
        return known

    def __post_init__(self) -> None:
        self.table.check_for(self.graph, {device.type for device in self.cluster.devices})

    @cached_property
    def _seconds(self) -> dict[tuple[str, float], tuple[Array, Array, Array]]:
        return {}

    @cached_property
    def _task_seconds(self) -> dict[tuple[tuple[str, ...], str, float, Recompute], TaskSeconds]:
        return {}

    @cached_property
    def _sums(self) -> dict[tuple[object, ...], float]:
        """Bytes of stages, by what is summed: most stages of a plan are stages of many others."""
        return {}

    def _once(self, key: tuple[object, ...], total: Callable[[], float]) -> float:
        if (known := self._sums.get(key)) is None:
            known = self._sums[key] = total()
        return known

    @cached_property
    def _reads(self) -> dict[str, list[tuple[str, float]]]:
        """(operator, bytes per sample) that each operator reads."""
        found: dict[str, list[tuple[str, float]]] = {op.name: [] for op in self.graph.ops}
        for edge in self.graph.edges:
            found[edge.target].append((edge.source, edge.bytes_per_sample))
        return found

    @cached_property
    def state_bytes_by_op(self) -> Array:
        """Bytes of parameters, gradients and optimizer state of each operator."""
        frozen = self.parameter_bytes - self.trainable_bytes
        return self.trainable_bytes * self.table.state_bytes_per_parameter_byte + frozen

    @cached_property
    def parameter_bytes(self) -> Array:
        """Parameter bytes of each operator, in order of `graph.ops`."""
        return np.array([op.parameter_bytes for op in self.graph.ops])

    @cached_property
    def trainable_bytes(self) -> Array:
        """Parameter bytes of each operator that has a gradient to synchronise."""
        return np.array([op.parameter_bytes if op.trainable else 0.0 for op in self.graph.ops])

    @cached_property
    def least_trainable_bytes(self) -> Array:
        """`trainable_bytes` with every shared parameter at one of its holders: no stage of any operators has less."""
        found = self.trainable_bytes.copy()
        for each in (each for each in self.graph.shared if each.trainable):
            found[self.positions(self.graph.holders[each.name][1:])] -= each.bytes
        return found

    @cached_property
    def least_state_bytes(self) -> Array:
        """`state_bytes_by_op` with every shared parameter at one of its holders."""
        repeated = self.trainable_bytes - self.least_trainable_bytes
        return self.state_bytes_by_op - repeated * self.table.state_bytes_per_parameter_byte

    @cached_property
    def saved_bytes(self) -> Array:
        """Bytes each operator keeps per sample in flight; the one that puts out the result, what the loss keeps too."""
        loss = [max((row.loss_bytes_per_sample for row in rows), default=0.0) for rows in self.temporaries]
        return np.array([op.work.saved_bytes_per_sample for op in self.graph.ops]) + np.array(loss)

    @cached_property
    def knows_temporaries(self) -> bool:
        """Whether the table says what operators hold while they run: if it was profiled."""
        return any(self.temporaries)

    def temporary_bytes(self, samples: float) -> Array:
        """Return the most bytes that each operator's forward or backward holds of so many samples, only meanwhile.

        In order of `graph.ops`, on the worst device type, the gradient that arrives included; 0 where it is not known.
        A device does one task at a time: it needs those of the operator that holds most (less by what others free; see
        `task_bytes`).
        """
        if samples not in self._temporary_bytes:
            rows = zip(self.graph.ops, self.temporaries, strict=True)
            found = [max((self._at_worst(op.name, each, samples) for each in held), default=0.0) for op, held in rows]
            self._temporary_bytes[samples] = np.array(found)
        return self._temporary_bytes[samples]

    @cached_property
    def _temporary_bytes(self) -> dict[float, Array]:
        return {}

    def _at_worst(self, op: str, held: Temporaries, samples: float) -> float:
        return max(held.forward(samples), held.backward(samples) + self.gradient_bytes_per_sample[op] * samples)

    @cached_property
    def gradient_bytes_per_sample(self) -> dict[str, float]:
        """Bytes of the gradient that comes back to each operator's outputs, as far as others read them."""
        found = {op.name: 0.0 for op in self.graph.ops}
        for edge in self.graph.edges:
            if edge.source in self.graph.differentiable:
                found[edge.source] = max(found[edge.source], edge.bytes_per_sample)
        return found

    @cached_property
    def temporaries(self) -> list[list[Temporaries]]:
        """What each operator holds while it runs, on each device type, in order of `graph.ops`; empty: not known."""
        types = sorted({device.type for device in self.cluster.devices})
        rows = [[self.table.by_op[op.name, kind].temporaries for kind in types] for op in self.graph.ops]
        return [[each for each in found if each is not None] for found in rows]

    def seconds(self, device_type: str, samples: float) -> tuple[Array, Array, Array]:
        """Return forward, input-gradient and weight-gradient seconds of every operator, in order of `graph.ops`."""
        key = (device_type, samples)
        if key not in self._seconds:
            rows = [self.table.by_op[op.name, device_type] for op in self.graph.ops]
            self._seconds[key] = (
                _evaluate([row.forward for row in rows], samples),
                _evaluate([row.input_gradient for row in rows], samples),
                _evaluate([row.weight_gradient for row in rows], samples),
            )
        return self._seconds[key]

    def positions(self, ops: Iterable[str]) -> NDArray[np.intp]:
        """Return the positions of the operators in `graph.ops`."""
        return np.array([self.graph.index[name] for name in ops], dtype=np.intp)

    def task_seconds(
        self, ops: Iterable[str], device: int, samples: float, recompute: Recompute = "none"
    ) -> TaskSeconds:
        """Return the seconds that these operators take for `samples` samples on one device.

        The backward of a stage that recomputes takes the forward seconds of its regions more, all before or among the
        input gradients. A region through which no gradient passes is never computed again.
        """
        key = tuple(ops), self.cluster.devices[device].type, samples, recompute
        if key not in self._task_seconds:
            self._task_seconds[key] = self._summed(*key)
        return self._task_seconds[key]

    def tasks_seconds(
        self, ops: Iterable[str], devices: Sequence[int], samples: float, recompute: Recompute = "none"
    ) -> list[TaskSeconds]:
        """Return `task_seconds` of each type of device that there is among some."""
        kinds = {self.cluster.devices[device].type: device for device in devices[: None if self._mixed else 1]}
        return [self.task_seconds(ops, device, samples, recompute) for device in kinds.values()]

    @cached_property
    def _mixed(self) -> bool:
        return len(self.cluster.types) > 1

    def _summed(self, ops: tuple[str, ...], device_type: str, samples: float, recompute: Recompute) -> TaskSeconds:
        at, overhead = self.positions(ops), self.table.task_overhead_seconds
        forward, input_gradient, weight_gradient = self.seconds(device_type, samples)
        return TaskSeconds(
            forward=float(forward[at].sum()) + overhead,
            input_gradient=float(input_gradient[at].sum()) + overhead + self._again(ops, forward, recompute),
            weight_gradient=float(weight_gradient[at].sum()),
        )

    def transfer_seconds(self, count: float, source: int, target: int) -> float:
        """Return the seconds that `count` bytes take from one device to another; none inside a device."""
        link = self.cluster.link(source, target)
        return link.seconds(count) if link else 0.0

    def message_seconds(self, source: int, target: int) -> float:
        """Return the seconds that a message between two devices takes of each of them."""
        link = self.cluster.link(source, target)
        return link.processor_seconds if link else 0.0

    def slowest_transfer_seconds(self, count: float, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        """Return the most seconds that `count` bytes take from one of some devices to one of others."""
        return slowest_seconds(self.cluster.links(sources, targets), count)

    def fastest_transfer_seconds(self, count: float, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        """Return the least seconds that `count` bytes take from one of some devices to one of others."""
        return min(link.seconds(count) if link else 0.0 for link in self.cluster.links(sources, targets))

    def all_reduce_seconds(self, count: float, devices: tuple[int, ...]) -> float:
        """Return the seconds of a ring all-reduce of `count` bytes over `devices`.

        2(d-1) steps of count/d bytes each, paced by the slowest link of the ring.
        """
        link = self.cluster.slowest_link(devices)
        degree = len(devices)
        return 2 * (degree - 1) * link.seconds(count / degree) if link and count else 0.0

    def gradient_bytes(self, ops: Iterable[str], without: Collection[str] = ()) -> float:
        """Return the bytes of the gradients of these operators' parameters.

        A parameter that several of them hold counts once, and one of the names `without` not at all.
        """
        inside, apart = tuple(ops), frozenset(without)
        return self._once(("gradients", inside, apart), lambda: self._gradient_bytes(dict.fromkeys(inside), apart))

    def _gradient_bytes(self, inside: Collection[str], without: Collection[str]) -> float:
        total = float(self.trainable_bytes[self.positions(inside)].sum()) - self.repeated_bytes(inside)
        apart = (each for each in self.graph.shared if each.trainable and each.name in without)
        return total - sum(each.bytes for each in apart if any(op in inside for op in self.graph.holders[each.name]))

    def repeated_bytes(self, ops: Iterable[str]) -> float:
        """Return the bytes that a sum over these operators counts too often, of trainable parameters they share."""
        inside = set(ops) if self.graph.shared else set[str]()
        counts = {each: sum(op in inside for op in self.graph.holders[each.name]) for each in self.graph.shared}
        return sum(each.bytes * max(0, count - 1) for each, count in counts.items() if each.trainable)

    def optimizer_seconds(self, ops: Iterable[str]) -> float:
        """Return the seconds of the optimizer step over these operators' trainable parameters."""
        return self.gradient_bytes(ops) * self.table.optimizer_seconds_per_parameter_byte

    def state_bytes(self, ops: Iterable[str]) -> float:
        """Return bytes of parameters, gradients and optimizer state, which every replica holds whole.

        A trainable parameter that several of these operators share is there once; every stage that holds it has one.
        """
        inside = tuple(ops)
        return self._once(("state", inside), lambda: self._state_bytes(dict.fromkeys(inside)))

    def _state_bytes(self, inside: Collection[str]) -> float:
        repeated = self.repeated_bytes(inside) * self.table.state_bytes_per_parameter_byte
        return float(self.state_bytes_by_op[self.positions(inside)].sum()) - repeated

    def activation_bytes(self, ops: Iterable[str], recompute: Recompute = "none") -> float:
        """Return the bytes that one sample in flight keeps at a stage of these operators.

        The tensors received from other stages, plus what the operators save for the backward pass. Of that,

        - a stage that recomputes in full keeps nothing;
        - a region of a stage keeps what others hold anyway: its outputs, as far as another region reads them, another
          stage does, or an operator outside the regions that saves them (up to what was saved inside);
        - an operator outside the regions keeps what it saves, and at least those of its outputs that a region reads.

        Not counted: model inputs, which are rows of the mini-batch; what the loss function saves, unless the table was
        profiled with it; random states (5 kB of a region with dropout) and copies of buffers that a forward changes.
        """
        inside = tuple(dict.fromkeys(ops))  # in order: a sum of floats depends on it
        return self._once(("activations", inside, recompute), lambda: self._activation_bytes(inside, recompute))

    def _activation_bytes(self, inside: tuple[str, ...], recompute: Recompute) -> float:
        received = sum(self._received(inside).values())
        if recompute == "full":
            return received
        if recompute == "none":
            return float(self.saved_bytes[self.positions(inside)].sum()) + received
        return self._kept(inside, recompute) + received

    def recomputed_bytes(self, ops: Iterable[str], recompute: Recompute) -> float:
        """Return the bytes per sample that a backward at a stage of these operators needs beside `activation_bytes`.

        Regions are computed again one at a time, so it is what the largest of them saves. A device does one task at a
        time: it needs them once, for the samples of one micro-batch.
        """
        each = (float(self.saved_bytes[self.positions(region)].sum()) for region in regions(ops, recompute))
        return max(each, default=0.0)

    def _again(self, ops: Iterable[str], forward: Array, recompute: Recompute) -> float:
        """Return the forward seconds of all that is computed twice."""
        found = (region for region in regions(ops, recompute) if not self.graph.differentiable.isdisjoint(region))
        return sum(float(forward[self.positions(region)].sum()) for region in found)

    def _received(self, inside: Iterable[str]) -> dict[str, float]:
        """Return the bytes per sample read from each operator outside; one that is read several times counts once."""
        stage, received = frozenset(inside), dict[str, float]()
        for name in inside:
            for source, count in self._reads[name]:
                if source not in stage:
                    received[source] = max(received.get(source, 0.0), count)
        return received

    def _kept(self, inside: tuple[str, ...], recompute: Recompute) -> float:
        """Return the bytes per sample that stay of what these operators save where some of them are in regions."""
        region_of = {name: number for number, region in enumerate(regions(inside, recompute)) for name in region}
        saved = dict(zip(inside, self.saved_bytes[self.positions(inside)].tolist(), strict=True))
        kept = {name: 0.0 if name in region_of else saved[name] for name in inside}
        for edge in self.graph.edges:
            source, target = edge.source, edge.target
            if source in region_of and region_of.get(target) != region_of[source]:
                plain = target in saved and target not in region_of
                held = min(saved[source], edge.bytes_per_sample) if plain else edge.bytes_per_sample
                kept[source] = max(kept[source], held)
            elif source in saved and source not in region_of and target in region_of:
                kept[source] = max(kept[source], edge.bytes_per_sample)
        return sum(kept.values())


def _evaluate(curves: list[Curve], samples: float) -> Array:
    return np.array([curve(samples) for curve in curves])


_KNOWN: WeakValueDictionary[tuple[int, int, int], CostModel] = WeakValueDictionary()
