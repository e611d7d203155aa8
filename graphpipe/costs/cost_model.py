"""The one look-up for every cost. Planners and simulator both use it, so they cannot disagree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from graphpipe.cluster.cluster import Cluster
from graphpipe.cluster.device import slowest_seconds
from graphpipe.cluster.ring import Ring
from graphpipe.costs.activation_bytes import ActivationBytes
from graphpipe.costs.cost_table import CostTable
from graphpipe.costs.op_bytes import OpBytes, State
from graphpipe.costs.op_cost import Curves
from graphpipe.costs.parameter_bytes import ParameterBytes
from graphpipe.costs.recompute_regions import Recompute, regions
from graphpipe.costs.stage_memory import StageMemory
from graphpipe.costs.task_seconds import TaskSeconds
from graphpipe.graph import Graph

Array = NDArray[np.float64]
_Passes = tuple[Array, Array, Array, Array, Array]
"""Seconds of each operator, in the order of `_PASSES`."""
_PASSES = ("forward", "input_gradient", "weight_gradient", "input_half", "weight_half")
"""The curves of a row. The halves of a split backward are those of the gradients, unless they were measured."""
MOVING_MICRO_BATCHES = 2
"""Micro-batches of a stage of which the device holds what the stage offloads: one whose task runs, and one more."""


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
    trains: bool = True
    """Whether operators train. For inference, none has a gradient or optimizer state, or saves anything."""

    @staticmethod
    def of(graph: Graph, table: CostTable, cluster: Cluster, *, trains: bool = True) -> "CostModel":
        """Return the model of these values. All plans of a search share it, so each cost is computed once.

        The table keeps the models made from it. A model keeps its graph and cluster alive, so their ids are unique.
        """
        key = id(graph), id(cluster), trains
        if not isinstance(known := table.look_ups.get(key), CostModel):
            known = table.look_ups[key] = CostModel(graph, table, cluster, trains)
        return known

    def __post_init__(self) -> None:
        self.table.check_for(self.graph, {device.type for device in self.cluster.devices})

    # Bytes

    @cached_property
    def op_bytes(self) -> OpBytes:
        """Bytes of every operator."""
        types = tuple(sorted({device.type for device in self.cluster.devices}))
        return OpBytes(self.graph, self.table, types, self.trains)

    @cached_property
    def parameter_bytes(self) -> ParameterBytes:
        """Bytes of the parameters, gradients and optimizer state of stages."""
        return ParameterBytes(self.op_bytes)

    @cached_property
    def activation_bytes(self) -> ActivationBytes:
        """Bytes that stages keep between forward and backward, for large micro-batches (see `activations`)."""
        return ActivationBytes(self.op_bytes)

    def activations(self, samples: float) -> ActivationBytes:
        """Return the bytes that stages keep between forward and backward.

        Args:
            samples: of one micro-batch on one device.
        """
        if not self.op_bytes.has_casts:
            return self.activation_bytes
        if (known := self._activations.get(samples)) is None:
            known = self._activations[samples] = ActivationBytes(self.op_bytes, samples)
        return known

    @cached_property
    def _activations(self) -> dict[float, ActivationBytes]:
        return {}

    def stage_memory(
        self,
        ops: tuple[str, ...],
        samples: float,
        recompute: Recompute = "none",
        state: State = "whole",
        degree: int = 1,
        offload: tuple[str, ...] = (),
    ) -> StageMemory[float]:
        """Return the memory of a stage.

        Args:
            ops: of the stage.
            samples: of one micro-batch on one device.
            recompute: what the stage recomputes.
            state: what its replicas shard.
            degree: the number of its replicas.
            offload: what the stage offloads.
        """
        key = ops, samples, recompute, state, degree, offload
        if (known := self._stage_memory.get(key)) is None:
            activations = self.activations(samples)
            saved, offloaded = activations.saved_and_offloaded(ops, recompute, offload)
            temporary = float(self.op_bytes.temporary(samples)[self.positions(ops)].max())
            known = self._stage_memory[key] = StageMemory(
                state=self.parameter_bytes.held(ops, state, degree),
                saved=saved,
                received=activations.received(ops),
                offloaded=offloaded,
                moving=MOVING_MICRO_BATCHES * offloaded * samples,
                recomputed=activations.recomputed(ops, recompute) * samples,
                temporary=temporary + (0.0 if self.trains else activations.working(ops) * samples),
            )
        return known

    @cached_property
    def _stage_memory(
        self,
    ) -> dict[tuple[tuple[str, ...], float, Recompute, State, int, tuple[str, ...]], StageMemory[float]]:
        return {}

    # Seconds on a device

    def seconds(self, device_type: str, samples: float) -> tuple[Array, Array, Array]:
        """Return forward, input-gradient and weight-gradient seconds of every operator, in order of `graph.ops`.

        Samples have their expected loads.
        """
        return self._expected(device_type, samples)[:3]

    def _expected(self, device_type: str, samples: float) -> _Passes:
        key = (device_type, samples)
        if key not in self._seconds:
            expected = tuple(samples * load.mean for load in self.table.loads)
            self._seconds[key] = self._evaluate(device_type, samples, expected)
        return self._seconds[key]

    @cached_property
    def _seconds(self) -> dict[tuple[str, float], _Passes]:
        return {}

    def _evaluate(self, device_type: str, samples: float, loads: tuple[float, ...]) -> _Passes:
        # An operator runs even if all its samples have a load of 0.
        work = np.full(len(self.graph.ops), float(samples))
        if not samples:
            return work, work, work, work, work
        for at, total in zip(self._loaded, loads, strict=True):
            work[at] = total
        if (curves := self._curves.get(device_type)) is None:
            rows = [self.table.by_op[op.name, device_type] for op in self.graph.ops]
            names = _PASSES if self._halves_measured else _PASSES[:3]
            curves = self._curves[device_type] = [Curves.of([getattr(row, name) for row in rows]) for name in names]
        if not self.trains:
            none = np.zeros_like(work)
            return curves[0](work), none, none, none, none
        seconds = [curve(work) for curve in curves]
        forward, input_gradient, weight_gradient = seconds[:3]
        input_half, weight_half = seconds[3:] or seconds[1:]
        return forward, input_gradient, weight_gradient, input_half, weight_half

    @cached_property
    def _halves_measured(self) -> bool:
        return any(row.halves is not None for row in self.table.rows)

    @cached_property
    def _loaded(self) -> list[NDArray[np.intp]]:
        return [self.positions(load.ops) for load in self.table.loads]

    @cached_property
    def _curves(self) -> dict[str, list[Curves]]:
        return {}

    def positions(self, ops: Iterable[str]) -> NDArray[np.intp]:
        """Return the positions of the operators in `graph.ops`."""
        return self.op_bytes.positions(ops)

    def task_seconds(
        self,
        ops: Iterable[str],
        device: int,
        samples: float,
        recompute: Recompute = "none",
        loads: tuple[float, ...] | None = None,
    ) -> TaskSeconds:
        """Return the seconds that these operators take for `samples` samples on one device.

        The backward of a stage that recomputes also takes the forward seconds of its regions. They count as part of the
        input gradient. A region is computed again only if a gradient passes through it.

        Args:
            ops: of the stage.
            device: position in the cluster's devices.
            samples: of one micro-batch on the device.
            recompute: what the stage recomputes.
            loads: the sum of each load of the table over these samples; None: what is expected.
        """
        ops = tuple(ops)
        if loads is not None and not self._has_load(ops):
            loads = None
        key = ops, self.cluster.devices[device].type, samples, recompute, loads
        if key not in self._task_seconds:
            self._task_seconds[key] = self._sum_seconds(*key)
        return self._task_seconds[key]

    @cached_property
    def _task_seconds(
        self,
    ) -> dict[tuple[tuple[str, ...], str, float, Recompute, tuple[float, ...] | None], TaskSeconds]:
        return {}

    def _has_load(self, ops: tuple[str, ...]) -> bool:
        if (known := self._with_load.get(ops)) is None:
            known = self._with_load[ops] = any(not set(load.ops).isdisjoint(ops) for load in self.table.loads)
        return known

    @cached_property
    def _with_load(self) -> dict[tuple[str, ...], bool]:
        return {}

    def tasks_seconds(
        self, ops: Iterable[str], devices: Sequence[int], samples: float, recompute: Recompute = "none"
    ) -> list[TaskSeconds]:
        """Return `task_seconds` on each device type that occurs among some devices."""
        kinds = {self.cluster.devices[device].type: device for device in devices[: None if self._mixed else 1]}
        return [self.task_seconds(ops, device, samples, recompute) for device in kinds.values()]

    @cached_property
    def _mixed(self) -> bool:
        return len(self.cluster.types) > 1

    def _sum_seconds(
        self,
        ops: tuple[str, ...],
        device_type: str,
        samples: float,
        recompute: Recompute,
        loads: tuple[float, ...] | None,
    ) -> TaskSeconds:
        at, overhead, ends = self.positions(ops), self.table.task_overhead_seconds, self.end_seconds(ops, samples)
        passes = self._expected(device_type, samples) if loads is None else self._evaluate(device_type, samples, loads)
        forward, inputs, weights, input_half, weight_half = (float(array[at].sum()) for array in passes)
        once = overhead + ends[1] + self._recompute_seconds(ops, passes[0], samples, recompute) if self.trains else 0.0
        return TaskSeconds(
            forward=forward + overhead + ends[0],
            input_gradient=inputs + once,
            weight_gradient=weights,
            input_half=input_half + once,
            weight_half=weight_half,
        )

    def end_seconds(self, ops: Iterable[str], samples: float) -> tuple[float, float]:
        """Return the seconds of a forward and a backward in which a replica's devices gather values of the sequence."""
        exchanges, inside = self.table.exchanges, {*ops}
        if exchanges is None or not samples:
            return 0.0, 0.0
        back = exchanges.gathered_back(self.graph.reads, inside) if self.trains else {}
        values = exchanges.gathered(self.graph.reads, inside), back
        forward, backward = (exchanges.gather_seconds(each.values(), samples) for each in values)
        return forward, backward

    def _recompute_seconds(self, ops: tuple[str, ...], forward: Array, samples: float, recompute: Recompute) -> float:
        trained = [region for region in regions(ops, recompute) if not self.graph.differentiable.isdisjoint(region)]
        again = sum(float(forward[self.positions(region)].sum()) for region in trained)
        if (exchanges := self.table.exchanges) is None or not trained:
            return again
        inside, gathered = {op for region in trained for op in region}, exchanges.gathered(self.graph.reads, {*ops})
        counts = [count for (source, _), count in gathered.items() if source in inside]
        return again + exchanges.gather_seconds(counts, samples)

    def copy_seconds(self, count: float, device: int) -> float:
        """Return the seconds in which a device copies `count` bytes to the memory of its node, or back."""
        return count / self.cluster.type_of(device).host_bandwidth_bytes_per_second

    def optimizer_seconds(self, ops: Iterable[str], state: State = "whole", degree: int = 1) -> float:
        """Return the seconds of the optimizer step of a stage's busiest replica, over what it updates.

        Devices that share a replica and divide the sequence first sum gradients of norms over their positions.

        Args:
            ops: of the stage.
            state: what its replicas shard.
            degree: the number of its replicas.
        """
        seconds = self.parameter_bytes.updated(ops, state, degree) * self.table.optimizer_seconds_per_parameter_byte
        return seconds if self.table.exchanges is None else seconds + self.table.exchanges.sum_seconds(ops)

    # Seconds between devices

    def transfer_seconds(self, count: float, source: int, target: int) -> float:
        """Return the seconds that `count` bytes take from one device to another; 0 inside a device."""
        link = self.cluster.link(source, target)
        return link.seconds(count) if link else 0.0

    def message_seconds(self, count: float, source: int, target: int) -> float:
        """Return the seconds of work that a message of `count` bytes between two devices costs each of them."""
        link = self.cluster.link(source, target)
        return link.work_seconds(count) if link else 0.0

    def slowest_transfer_seconds(self, count: float, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        """Return the most seconds that `count` bytes take from any of the sources to any of the targets."""
        return slowest_seconds(self.cluster.links(sources, targets), count)

    def fastest_transfer_seconds(self, count: float, sources: tuple[int, ...], targets: tuple[int, ...]) -> float:
        """Return the least seconds that `count` bytes take from any of the sources to any of the targets."""
        return min([link.seconds(count) if link else 0.0 for link in self.cluster.links(sources, targets)])

    def ring(self, devices: tuple[int, ...]) -> Ring:
        """Return the ring over `devices`, in their order, which sums and gathers values."""
        return Ring(self.cluster.slowest_link(devices), len(devices))

    def all_reduce_seconds(self, count: float, devices: tuple[int, ...]) -> float:
        """Return the seconds of a ring all-reduce of `count` bytes over `devices`."""
        return self.ring(devices).reduce_seconds(count)

    def all_gather_seconds(self, count: float, devices: tuple[int, ...]) -> float:
        """Return the seconds of a ring all-gather, or reduce-scatter, of `count` bytes over `devices`."""
        return self.ring(devices).gather_seconds(count)

    def all_reduce_work_seconds(self, count: float, devices: tuple[int, ...]) -> float:
        """Return the seconds of work that the messages of a ring all-reduce of `count` bytes cost each device."""
        return self.ring(devices).reduce_work_seconds(count)

    def all_gather_work_seconds(self, count: float, devices: tuple[int, ...]) -> float:
        """Return the seconds of work that the messages of a ring all-gather of `count` bytes cost each device."""
        return self.ring(devices).gather_work_seconds(count)
