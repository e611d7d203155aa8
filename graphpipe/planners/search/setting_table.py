"""The settings of a search: micro-batch sizes under a least data-parallel degree, and the loads of operators."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphpipe.costs import CostModel, StageMemory
from graphpipe.planners.problem.partition import Problem
from graphpipe.planners.problem.stage_costs import (
    LEAST_LOAD,
    Array,
    far_bandwidth,
    smallest_memory_bytes,
    stage_seconds,
)
from graphpipe.planners.search.coarsen import MergedOps
from graphpipe.planners.search.relative_loads import RelativeLoads

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SettingTable:
    """The loads of every operator for some micro-batch sizes, if stages have whole multiples of `unit` devices.

    Devices are counted in units, so a larger unit makes shallower pipelines and a smaller search. In a cluster of
    unequal devices, every device is treated as the slowest and smallest one, so a stage that fits fits everywhere.
    """

    problem: Problem
    costs: CostModel
    unit: int
    degrees: tuple[int, ...]
    """Data-parallel degrees, ascending multiples of the unit; the first is the unit."""
    sizes: NDArray[np.int64]
    """[settings]: micro-batch sizes."""
    seconds: Array
    """[operators, settings, degrees]: stage time of operators, see `RelativeLoads`."""
    cut_seconds_per_byte: Array
    """[settings, degrees]: seconds to send a byte per sample out of a stage, see `RelativeLoads`."""

    @staticmethod
    def of(problem: Problem, costs: CostModel, unit: int, sizes: list[int], ops: frozenset[str]) -> "SettingTable":
        """Fill the table for the sizes that a unit divides.

        Args:
            problem: graph, costs, cluster and batch.
            costs: the cost look-up of the problem.
            unit: least data-parallel degree, up to the number of devices.
            sizes: micro-batch sizes.
            ops: operators to place; the load of all others (the whole-batch tail) is 0.
        """
        sizes = [size for size in sizes if size % unit == 0]
        degrees = _degrees(problem, unit, sizes)
        seconds = np.full((len(problem.graph.ops), len(sizes), len(degrees)), np.inf)
        for at, size in enumerate(sizes):
            for k, degree in enumerate(degrees):
                if size % degree == 0:
                    seconds[:, at, k] = stage_seconds(problem, costs, size, degree)
        outside = [position for position, op in enumerate(problem.graph.ops) if op.name not in ops]
        seconds[outside] = 0.0
        cut = np.array(sizes, dtype=float)[:, None] / np.array(degrees) / far_bandwidth(problem)
        return SettingTable(problem, costs, unit, degrees, np.array(sizes, dtype=np.int64), seconds, cut)

    @property
    def units(self) -> int:
        """Number of whole units of devices in the cluster."""
        return len(self.problem.cluster.devices) // self.unit

    def only(self, chosen: Indices) -> "SettingTable":
        """Return the table of the chosen settings."""
        cut, seconds = self.cut_seconds_per_byte[chosen], self.seconds[:, chosen]
        return replace(self, sizes=self.sizes[chosen], seconds=seconds, cut_seconds_per_byte=cut)

    def loads(self, targets: Array, in_flight: Array | None, runs: MergedOps | None = None) -> RelativeLoads:
        """Return the loads of all settings.

        Args:
            targets: seconds per sample that a stage may take, of shape [settings, targets].
            in_flight: assumed samples in flight of each operator's stage, [operators, settings]; None ignores memory.
            runs: operators that represent several.
        """
        memory = None if in_flight is None else self._memory_shares(in_flight)
        seconds = self._merged(self.seconds, runs or {})
        memory = None if memory is None else self._merged(memory, runs or {})
        return RelativeLoads(
            index=self.problem.graph.index,
            units=tuple(degree // self.unit for degree in self.degrees),
            seconds=seconds,
            targets=targets * self.sizes[:, None],
            memory=memory,
            classes=_classes(seconds, memory),
            cut_seconds_per_byte=self.cut_seconds_per_byte,
            overlap=self.problem.cluster.overlap,
        )

    def _memory_shares(self, in_flight: Array) -> Array:
        """Return, of shape [operators, settings, degrees], the share of the smallest device each operator takes.

        Versions of weights are as many as the samples in flight need. Tensors received from other stages are left out,
        because they depend on the cuts.
        """
        degrees = np.array(self.degrees, dtype=float)
        state = [self.costs.op_bytes.held(self.problem.state, degree) for degree in self.degrees]
        samples = self.sizes[:, None] / degrees
        memory = StageMemory.summed(
            np.stack(state, axis=1)[:, None],
            self.costs.op_bytes.saved_of(samples),
            recompute=self.problem.recompute,
            samples=samples,
        )
        bytes_held = memory.total(in_flight[:, :, None] / degrees)
        if self.problem.weights != "flush":
            held = np.maximum(in_flight, self.sizes)
            latest = held.max(axis=0, keepdims=True) if self.problem.weights == "vertical-sync" else held
            older = self.problem.versions(latest, self.sizes.astype(np.float64)) - 1
            bytes_held = bytes_held + (older * self.costs.op_bytes.trainable[:, None])[:, :, None]
        return bytes_held / smallest_memory_bytes(self.problem)

    def _merged(self, loads: Array, runs: MergedOps) -> Array:
        """Return the loads with the load of a whole run at the operator that represents it."""
        several = {name: ops for name, ops in runs.items() if len(ops) > 1}
        if not several:
            return loads
        merged = loads.copy()
        for name, ops in several.items():
            merged[self.problem.graph.index[name]] = loads[self.costs.positions(ops)].sum(axis=0)
        return merged


def _degrees(problem: Problem, unit: int, sizes: list[int]) -> tuple[int, ...]:
    """Return the multiples of a unit that divide a micro-batch size."""
    devices = len(problem.cluster.devices)
    multiples = (degree for degree in range(unit, devices + 1, unit) if any(size % degree == 0 for size in sizes))
    # Only the largest unit searches a single stage on all devices.
    return tuple(degree for degree in multiples if degree < devices or degree == unit)


def shares(problem: Problem, costs: CostModel) -> dict[str, float]:
    """Return the largest of every operator's shares in the work, the state and the activations."""
    work = stage_seconds(problem, costs, problem.batch_size, 1)
    measures = (work, costs.op_bytes.state, costs.op_bytes.saved)
    largest = np.max([measure / max(float(measure.sum()), LEAST_LOAD) for measure in measures], axis=0)
    return dict(zip((op.name for op in problem.graph.ops), largest.tolist(), strict=True))


def _classes(seconds: Array, memory: Array | None) -> tuple[int, ...]:
    rows = seconds if memory is None else np.concatenate((seconds, memory), axis=2)
    known: dict[bytes, int] = {}
    return tuple(known.setdefault(row.tobytes(), len(known)) for row in rows)
